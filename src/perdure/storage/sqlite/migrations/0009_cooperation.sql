-- Structured cooperation: messages, what happened to them, return values, and who handles what.

create table messages (
    id text primary key not null,
    topic text not null,
    payload text not null,
    created_at integer not null
) without rowid;

-- The journal of operations' runs. `scope` is the last id of the lineage: the run whose row it is, or the root emission.
-- Its one writer numbers its rows. `key` has what there may be only one of for a message, and finds it.
create table message_event (
    scope text not null,
    seq integer not null,
    id text not null,
    message_id text not null,
    type text not null,
    key text,
    coroutine_name text,
    coroutine_identifier text,
    step text,
    cooperation_lineage text not null,
    created_at integer not null,
    exception text,
    context text,
    next_step integer,
    child_failure_handler_iteration integer,
    primary key (scope, seq)
) without rowid;
create unique index message_event_key on message_event (message_id, key) where key is not null;

create table return_value (
    scope text not null,
    variable text not null,
    handler text not null,
    value text not null,
    primary key (scope, variable)
) without rowid;

-- A handler is expected from `registered_at` on, whether an engine has it or not, until it is taken out.
create table handlers (
    topic text not null,
    name text not null,
    registered_at integer,
    retired_at integer,
    seen_at integer,
    primary key (topic, name)
) without rowid;

-- Grows whenever a handler changes.
create table handler_book (
    version integer not null
);
insert into handler_book (version) values (0);
