-- What runs publish, and their streams.

-- `seq` and `number` say which of the words of a run's code a row is: the completion number of the activation that said
-- it, and the place in it. A word that is said again, after a crash, finds itself there.
create table published (
    run_id text not null,
    key text not null,
    at integer not null,
    seq integer not null,
    number integer not null,
    value text not null,
    primary key (run_id, key)
);

-- What steps append has a position and an attempt, and is never said again: it has no `seq`.
create table stream_items (
    run_id text not null,
    stream text not null,
    "offset" integer not null,
    at integer not null,
    position text,
    attempt integer,
    seq integer,
    number integer,
    value text not null,
    primary key (run_id, stream, "offset")
);
create unique index stream_items_said on stream_items (run_id, seq, number) where seq is not null;
