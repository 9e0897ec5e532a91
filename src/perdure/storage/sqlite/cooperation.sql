-- The queries of structured cooperation. As in queries.sql, a comment with its name starts a query.

-- name: emit_message
-- In a caller's transaction, a message that already exists stays unchanged.
insert into messages (id, topic, payload, created_at) values (?, ?, ?, ?) on conflict do nothing

-- name: insert_messages
insert into messages (id, topic, payload, created_at) values (?, ?, ?, ?)

-- name: event_columns
-- In the order of the fields of kernel.cooperation.MessageEventRow.
scope, seq, id, message_id, type, key, coroutine_name, coroutine_identifier, step, cooperation_lineage, created_at,
exception, context, next_step, child_failure_handler_iteration

-- name: insert_events
insert into message_event ({event_columns}) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: insert_values
insert into return_value (scope, variable, handler, value) values (?, ?, ?, ?)

-- name: book_version
select version from handler_book

-- name: turn_page
update handler_book set version = version + 1

-- name: see
-- Only the first time counts.
insert into handlers (topic, name, seen_at) values (:topic, :name, :at)
on conflict (topic, name) do update set seen_at = excluded.seen_at where handlers.seen_at is null

-- name: register
insert into handlers (topic, name, registered_at) values (:topic, :name, :at)
on conflict (topic, name) do update set registered_at = excluded.registered_at, retired_at = null
where handlers.registered_at is null or handlers.retired_at is not null

-- name: unregister
update handlers set retired_at = :at where topic = :topic and name = :name and retired_at is null

-- name: handlers
select topic, name, registered_at, retired_at, seen_at from handlers order by topic, name

-- name: operation_columns
-- In the order of the fields of kernel.cooperation.OperationRow. The outcome is only given for a run that was called.
id, parent_id, workflow, status, origin, bond,
case when bond <> 'called' then null
    when spilled & 2 then (select data from payloads where run_id = runs.id and slot = 'output') else output end,
case when bond <> 'called' then null
    when spilled & 4 then (select data from payloads where run_id = runs.id and slot = 'failure') else failure end

-- name: operations
select {operation_columns} from runs
where id in (select value from json_each(:ids)) and (model = 'operation' or bond = 'called')

-- name: ancestors
-- All ancestors of some runs. The lineages of these runs do not name all of them.
select {operation_columns} from runs where id in (
    with recursive above (id) as (
        select parent_id from runs where id in (select value from json_each(:ids))
        union
        select runs.parent_id from above join runs on runs.id = above.id
    )
    select id from above
) and model = 'operation'

-- name: children
select {operation_columns} from runs indexed by runs_parent
where parent_id in (select value from json_each(:ids)) and (model = 'operation' or bond = 'called')

-- name: events_of_scopes
select {event_columns} from message_event where scope in (select value from json_each(:ids))

-- name: events_at
-- Some events by scope and number. In a list of pairs, SQLite would look up a pair only by its scope, and a scope with
-- many children has many rows.
select {event_columns} from (
    select distinct json_extract(value, '$[0]') as place_scope, json_extract(value, '$[1]') as place_seq
    from json_each(:places)
) cross join message_event on scope = place_scope and seq = place_seq

-- name: keyed_events
-- Events that exist once for each message and key.
select {event_columns} from message_event indexed by message_event_key
where message_id in (select value from json_each(:ids)) and key is not null

-- name: asks
-- Requests to the handlers of some messages: to give up, or to roll back.
select {event_columns} from message_event indexed by message_event_key
where message_id in (select value from json_each(:ids)) and key is not null
    and (key = 'ROLLBACK_EMITTED' or key like 'CANCELLATION_REQUESTED/%')

-- name: emitted
select {event_columns} from message_event indexed by message_event_key
where message_id = :message_id and key = 'EMITTED'

-- name: messages
select id, topic, payload, created_at from messages where id in (select value from json_each(:ids)) order by id

-- name: values
select scope, variable, handler, value from return_value
where scope in (select value from json_each(:ids)) order by scope, variable
