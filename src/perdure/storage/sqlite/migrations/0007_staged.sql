-- What transactional steps came to, until it is in the journal.

create table staged (
    run_id text not null,
    position text not null,
    name text not null,
    claim integer not null,
    attempt integer not null,
    started_at integer not null,
    at integer not null,
    value text not null,
    primary key (run_id, position)
);
