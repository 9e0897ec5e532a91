-- Structured cooperation: messages, what happened to them, return values, and who handles what. One more error of commits:
--   PD004  the book of handlers has another version than the batch expects; the detail says which

create table messages (
    id text collate "C" primary key,
    topic text collate "C" not null,
    payload text not null,
    created_at bigint not null
);

-- The journal of operations' runs. `scope` is the last id of the lineage: the run whose row it is, or the root emission.
-- Its one writer numbers its rows. `key` has what there may be only one of for a message, and finds it.
create table message_event (
    scope text collate "C" not null,
    seq bigint not null,
    id text collate "C" not null,
    message_id text collate "C" not null,
    type text collate "C" not null,
    key text collate "C",
    coroutine_name text collate "C",
    coroutine_identifier text collate "C",
    step text,
    cooperation_lineage text collate "C" not null,
    created_at bigint not null,
    exception text,
    context text,
    next_step bigint,
    child_failure_handler_iteration bigint,
    primary key (scope, seq)
);
create unique index message_event_key on message_event (message_id, key) where key is not null;

create table return_value (
    scope text collate "C" not null,
    variable text collate "C" not null,
    handler text collate "C" not null,
    value text not null,
    primary key (scope, variable)
);

-- A handler is expected from `registered_at` on, whether an engine has it or not, until it is taken out.
create table handlers (
    topic text collate "C" not null,
    name text collate "C" not null,
    registered_at bigint,
    retired_at bigint,
    seen_at bigint,
    primary key (topic, name)
);

-- Grows whenever a handler changes.
create table handler_book (
    version bigint not null
);
insert into handler_book (version) values (0);

create type message_v1 as (id text, topic text, payload text, created_at bigint);
create type message_event_v1 as (
    scope text, seq bigint, id text, message_id text, type text, key text, coroutine_name text, coroutine_identifier text,
    step text, cooperation_lineage text, created_at bigint, exception text, context text, next_step bigint,
    child_failure_handler_iteration bigint
);
create type return_value_v1 as (scope text, variable text, handler text, value text);
create type handler_v1 as (topic text, name text);
create type cooperation_v1 as (
    at bigint, book bigint, messages message_v1[], events message_event_v1[], return_values return_value_v1[],
    seen handler_v1[]
);

-- What a batch adds to messages and their events. The state is what the rest of the batch came to, as advance_v1 has it.
create function write_cooperation_v1(state integer, c cooperation_v1) returns integer language plpgsql as $$
declare
    current_version bigint;
begin
    if state <> 0 then
        return state;
    end if;
    if c.book is not null then
        select version into current_version from handler_book;
        if current_version <> c.book then
            raise exception 'the book of handlers has changed' using errcode = 'PD004', detail = current_version::text;
        end if;
    end if;
    if cardinality(c.messages) > 0 then
        insert into messages (id, topic, payload, created_at)
        select id, topic, payload, created_at from unnest(c.messages);
    end if;
    insert into message_event (
        scope, seq, id, message_id, type, key, coroutine_name, coroutine_identifier, step, cooperation_lineage, created_at,
        exception, context, next_step, child_failure_handler_iteration
    )
    select
        scope, seq, id, message_id, type, key, coroutine_name, coroutine_identifier, step, cooperation_lineage, created_at,
        exception, context, next_step, child_failure_handler_iteration
    from unnest(c.events);
    if cardinality(c.return_values) > 0 then
        insert into return_value (scope, variable, handler, value)
        select scope, variable, handler, value from unnest(c.return_values);
    end if;
    if cardinality(c.seen) > 0 then
        -- Always in the same order, so that nobody waits for each other.
        insert into handlers (topic, name, seen_at)
        select distinct new.topic, new.name, c.at from unnest(c.seen) as new order by new.topic, new.name
        on conflict (topic, name) do update set seen_at = excluded.seen_at where handlers.seen_at is null;
        if found then
            update handler_book set version = version + 1;
        end if;
    end if;
    return 0;
end
$$;

-- Have handlers expected from now on. Whoever registers or is seen waits for the other at the rows of handlers.
create function register_v1(new_handlers handler_v1[], now bigint) returns void language plpgsql as $$
begin
    insert into handlers (topic, name, registered_at)
    select distinct new.topic, new.name, now from unnest(new_handlers) as new order by new.topic, new.name
    on conflict (topic, name) do update set registered_at = excluded.registered_at, retired_at = null
    where handlers.registered_at is null or handlers.retired_at is not null;
    if found then
        update handler_book set version = version + 1;
    end if;
end
$$;
