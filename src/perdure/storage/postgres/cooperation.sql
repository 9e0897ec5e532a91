-- The queries of structured cooperation. As in queries.sql, a comment with its name starts a query.

-- name: event_columns
-- In the order of the fields of kernel.cooperation.MessageEventRow.
scope, seq, id, message_id, type, key, coroutine_name, coroutine_identifier, step, cooperation_lineage, created_at,
exception, context, next_step, child_failure_handler_iteration

-- name: register
select register_v1(:handlers::handler_v1[], :at)

-- name: unregister
with gone as (
    update handlers set retired_at = :at where topic = :topic and name = :name and retired_at is null returning topic
), turned as (
    update handler_book set version = version + 1 where exists (select 1 from gone)
)
select topic from gone

-- name: handlers
-- With the version of the registry. There is one row of nulls if there are no handlers.
select handlers.topic, handlers.name, handlers.registered_at, handlers.retired_at, handlers.seen_at, handler_book.version
from handler_book left join handlers on true order by handlers.topic, handlers.name

-- name: operation_columns
-- In the order of the fields of kernel.cooperation.OperationRow. The outcome is only given for a run that was called.
id, parent_id, workflow, status, origin, bond,
case when bond = 'called' then output end, case when bond = 'called' then failure end

-- name: operations
select {operation_columns} from runs where id = any(:ids::text[]) and (model = 'operation' or bond = 'called')

-- name: ancestors
-- All ancestors of some runs. The lineages of these runs do not name all of them.
with recursive above (id) as (
    select parent_id from runs where runs.id = any(:ids::text[])
    union
    select runs.parent_id from above join runs on runs.id = above.id
)
select {operation_columns} from runs where id = any(array(select above.id from above)) and model = 'operation'

-- name: children
select {operation_columns} from runs
where parent_id = any(:ids::text[]) and (model = 'operation' or bond = 'called')

-- name: events_of_scopes
select {event_columns} from message_event where scope = any(:ids::text[])

-- name: events_at
-- Some events by scope and number.
select {event_columns} from message_event
where (scope, seq) in (select * from unnest(:scopes::text[], :seqs::bigint[]))

-- name: keyed_events
-- Events that exist once for each message and key.
select {event_columns} from message_event where message_id = any(:ids::text[]) and key is not null

-- name: asks
-- Requests to the handlers of some messages: to give up, or to roll back.
select {event_columns} from message_event
where message_id = any(:ids::text[]) and key is not null
    and (key = 'ROLLBACK_EMITTED' or key like 'CANCELLATION_REQUESTED/%')

-- name: emitted
select {event_columns} from message_event where message_id = :message_id and key = 'EMITTED'

-- name: messages
select id, topic, payload, created_at from messages where id = any(:ids::text[]) order by id

-- name: values
select scope, variable, handler, value from return_value where scope = any(:ids::text[]) order by scope, variable
