"""/v1/keys: who may come in."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Response

from service.api.context import Admin, Anyone, Service, problems
from service.operations import keys
from service.schemas import NewKey

router = APIRouter(prefix="/v1/keys", tags=["keys"])
KeyId = Annotated[str, Path(pattern=r"^key_[0-9A-Z]{26}$", examples=["key_01J00000000000000000000000"])]


@router.post("", status_code=201, responses=problems(), summary="A new key")
def create(new: NewKey, parts: Service, _actor: Admin) -> dict[str, Any]:
    """Its secret is in this answer and nowhere else."""
    return keys.create(parts.database, name=new.name, roles=new.roles, expires_in_days=new.expires_in_days)


@router.get("", responses=problems(), summary="All keys")
def list_all(parts: Service, _actor: Admin) -> dict[str, Any]:
    """Without their secrets."""
    return {"items": keys.listed(parts.database)}


@router.get("/self", responses=problems(), summary="This key")
def myself(actor: Anyone) -> dict[str, Any]:
    """Who the service thinks you are."""
    return {"id": actor.id, "name": actor.name, "roles": sorted(actor.roles)}


@router.delete("/{key}", status_code=204, responses=problems("not-found"), summary="Revoke a key")
def revoke(key: KeyId, parts: Service, _actor: Admin) -> Response:
    """Within two seconds it opens nothing any more."""
    keys.revoke(parts.database, key)
    return Response(status_code=204)
