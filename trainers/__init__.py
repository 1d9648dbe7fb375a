"""The documented mechanisms: `catalog` says what each of them does to data. The attacks that audit them are to come."""
