"""A ledger that only grows: populations, entries, releases, holds, datapoints, cohorts, checkpoints and keys."""

from alembic import op

revision = "0001"
down_revision = None

TABLES = """
CREATE TABLE population (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL CONSTRAINT one_population_per_name UNIQUE,
    number bigint NOT NULL,
    hash bytea NOT NULL,
    root bytea NOT NULL,
    created_at timestamptz NOT NULL
);
CREATE TABLE entry (
    population_id bigint NOT NULL REFERENCES population,
    number bigint NOT NULL,
    previous bytea NOT NULL,
    hash bytea NOT NULL,
    kind text NOT NULL,
    release text,
    at timestamptz NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (population_id, number)
);
CREATE INDEX entries_of_a_release ON entry (release) WHERE release IS NOT NULL;
CREATE TABLE release (
    id text PRIMARY KEY,
    population_id bigint NOT NULL REFERENCES population,
    number bigint NOT NULL,
    at timestamptz NOT NULL
);
CREATE INDEX releases_of_a_population ON release (population_id, number);
CREATE TABLE hold (
    release text PRIMARY KEY,
    population_id bigint NOT NULL REFERENCES population,
    expires_at timestamptz
);
CREATE INDEX holds_by_expiry ON hold (expires_at);
CREATE TABLE datapoint (
    population_id bigint NOT NULL REFERENCES population,
    digest bytea NOT NULL,
    ordinal bigint NOT NULL,
    erased_at timestamptz,
    PRIMARY KEY (population_id, digest),
    CONSTRAINT one_key_per_ordinal UNIQUE (population_id, ordinal)
);
CREATE TABLE cohort (
    population_id bigint NOT NULL REFERENCES population,
    digest bytea NOT NULL,
    number bigint NOT NULL,
    datapoints bigint NOT NULL,
    members bytea NOT NULL,
    history bytea NOT NULL,
    PRIMARY KEY (population_id, digest)
);
CREATE TABLE idempotency (
    id bytea PRIMARY KEY,
    digest bytea NOT NULL,
    status integer NOT NULL,
    response bytea NOT NULL,
    at timestamptz NOT NULL
);
CREATE TABLE checkpoint (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL,
    payload bytea NOT NULL,
    signature bytea NOT NULL,
    public_key bytea NOT NULL,
    heads bytea NOT NULL
);
CREATE TABLE installation (
    only_one boolean PRIMARY KEY DEFAULT true CHECK (only_one),
    secrets bytea NOT NULL
);
CREATE TABLE api_key (
    id text PRIMARY KEY,
    name text NOT NULL,
    prefix text NOT NULL,
    secret_hash bytea NOT NULL CONSTRAINT one_key_per_secret UNIQUE,
    roles text NOT NULL,
    created_at timestamptz NOT NULL,
    expires_at timestamptz,
    revoked boolean NOT NULL DEFAULT false,
    last_used_at timestamptz
);
"""

# A correction is a new entry: what is written stays, whoever asks.
ONLY_GROW = """
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'table % only grows: % is refused', TG_TABLE_NAME, TG_OP USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER only_grows BEFORE UPDATE OR DELETE OR TRUNCATE ON entry EXECUTE FUNCTION refuse_change();
CREATE TRIGGER only_grows BEFORE UPDATE OR DELETE OR TRUNCATE ON release EXECUTE FUNCTION refuse_change();
CREATE TRIGGER only_grows BEFORE UPDATE OR DELETE OR TRUNCATE ON idempotency EXECUTE FUNCTION refuse_change();
CREATE TRIGGER only_grows BEFORE UPDATE OR DELETE OR TRUNCATE ON checkpoint EXECUTE FUNCTION refuse_change();
CREATE TRIGGER only_grows BEFORE UPDATE OR DELETE OR TRUNCATE ON installation EXECUTE FUNCTION refuse_change();
"""

# The service works as this role, which owns nothing and could not change the ledger even without the triggers.
ROLE = """
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'stint_service') THEN CREATE ROLE stint_service NOLOGIN; END IF;
END $$;
GRANT stint_service TO CURRENT_USER;
DO $$ BEGIN EXECUTE format('GRANT USAGE ON SCHEMA %I TO stint_service', current_schema()); END $$;
GRANT SELECT ON alembic_version TO stint_service;
GRANT SELECT, INSERT ON entry, release, idempotency, checkpoint, installation TO stint_service;
GRANT SELECT, INSERT, UPDATE (number, hash, root) ON population TO stint_service;
GRANT SELECT, INSERT, UPDATE (erased_at) ON datapoint TO stint_service;
GRANT SELECT, INSERT, UPDATE (revoked, last_used_at) ON api_key TO stint_service;
GRANT SELECT, INSERT, DELETE ON hold, cohort TO stint_service;
"""


def upgrade() -> None:
    """Everything that the first service needs."""
    op.execute(TABLES)
    op.execute(ONLY_GROW)
    op.execute(ROLE)
