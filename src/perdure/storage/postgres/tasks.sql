-- The queries of tasks. As in queries.sql, a comment with its name starts a query.

-- name: task_columns
-- A task, in the order of the fields of kernel.tasks.Task.
tasks.id, tasks.run_id, tasks.position, tasks.queue, tasks.kind, tasks.title, tasks.schema, tasks.payload, tasks.status,
tasks.worker, tasks.lease_us, tasks.lease_until, tasks.beat_at, tasks.details, tasks.error, tasks.claims, tasks.due_at,
tasks.created_at, tasks.closed_at, tasks.answered_by, tasks.actor

-- name: tasks_within
-- Whether the run belongs to the runs of a list. If the list has no limit on runs, all runs do.
(
    :workflows::text[] is null
    or exists (
        select from runs where runs.id = tasks.run_id and (
            runs.workflow = any(:workflows)
            or exists (
                select from unnest(:tag_keys::text[], :tag_values::text[]) as wanted (key, value)
                join run_tags as found on found.key = wanted.key and found.value = wanted.value
                    and found.created_at = runs.created_at and found.run_id = runs.id
            )
        )
    )
)

-- name: is_wanted_task
-- The other conditions of a filter for tasks.
(:after::text is null or id > :after) and (:kind::text is null or kind = :kind) and (:queue::text is null or queue = :queue)
and (
    :status::text is null
    or (:status = 'open' and status = 'open' and (lease_until is null or lease_until <= :at))
    or (:status = 'claimed' and status = 'open' and lease_until > :at)
    or (:status <> 'open' and status = :status)
)
and {tasks_within}

-- name: tasks_of_run
select {task_columns} from tasks where run_id = :run_id and {is_wanted_task} order by id limit :limit

-- name: tasks_open
select {task_columns} from tasks where status = 'open' and queue = :queue and {is_wanted_task} order by id limit :limit

-- name: tasks_open_anywhere
select {task_columns} from tasks where status = 'open' and {is_wanted_task} order by id limit :limit

-- name: tasks_all
select {task_columns} from tasks where {is_wanted_task} order by id limit :limit

-- name: tasks
select {task_columns} from tasks where id = any(:ids::text[])

-- name: claim_tasks
-- Give open tasks of a queue to a worker. Tasks that others have claimed, or are just claiming, are skipped.
with free as (
    select id from tasks
    where status = 'open' and queue = :queue and (lease_until is null or lease_until <= :at)
    order by id limit :limit for update skip locked
), claimed as (
    update tasks set
        worker = :worker, lease_us = :lease_us, lease_until = :at::bigint + :lease_us::bigint, beat_at = :at,
        claims = claims + 1, actor = :actor
    from free where tasks.id = free.id returning {task_columns}
)
select * from claimed order by id

-- name: renew_lease
-- A heartbeat of the worker that has claimed a task.
update tasks set lease_until = :at::bigint + lease_us, beat_at = :at, details = coalesce(:details, details), actor = :actor
where id = :id and status = 'open' and worker = :worker returning id

-- name: release_task
-- The worker that has claimed a task gives it back.
update tasks set worker = null, lease_until = null, beat_at = :at, error = coalesce(:error, error), actor = :actor
where id = :task_id and status = 'open' and worker = :worker returning id
