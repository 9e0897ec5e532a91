-- The queries of tasks. As in queries.sql, a comment with its name starts a query.

-- name: task_columns
-- A task, in the order of the fields of kernel.tasks.Task.
id, run_id, position, queue, kind, title, schema, payload, status, worker, lease_us, lease_until, beat_at, details, error,
claims, due_at, created_at, closed_at, answered_by, actor

-- name: insert_task
insert into tasks (
    id, run_id, position, queue, kind, title, schema, payload, status, worker, lease_us, lease_until, beat_at, details,
    error, claims, due_at, created_at, closed_at, answered_by
)
values (
    :id, :run_id, :position, :queue, :kind, :title, :schema, :payload, :status, :worker, :lease_us, :lease_until, :beat_at,
    :details, :error, :claims, :due_at, :created_at, :closed_at, :answered_by
)

-- name: answer_task
-- Answer a task if it is open, and not claimed by another worker.
update tasks set status = 'answered', closed_at = :at, answered_by = :by
where id = :task_id and status = 'open' and (:worker is null or worker = :worker)

-- name: withdraw_task
update tasks set status = 'withdrawn', closed_at = :at where id = :id and status = 'open'

-- name: tasks_within
-- Whether the run belongs to the runs of a list. If the list has no limit on runs, all runs do.
(
    :workflows is null
    or exists (
        select 1 from runs where runs.id = tasks.run_id and (
            runs.workflow in (select value from json_each(:workflows))
            or exists (
                select 1 from json_each(:tags) as wanted cross join run_tags as found
                where found.key = json_extract(wanted.value, '$[0]') and found.value = json_extract(wanted.value, '$[1]')
                    and found.created_at = runs.created_at and found.run_id = runs.id
            )
        )
    )
)

-- name: is_wanted_task
-- The other conditions of a filter for tasks.
(:after is null or id > :after) and (:kind is null or kind = :kind) and (:queue is null or queue = :queue)
and (
    :status is null
    or (:status = 'open' and status = 'open' and (lease_until is null or lease_until <= :at))
    or (:status = 'claimed' and status = 'open' and lease_until > :at)
    or (:status <> 'open' and status = :status)
)
and {tasks_within}

-- name: tasks_of_run
select {task_columns} from tasks indexed by tasks_run where run_id = :run_id and {is_wanted_task} order by id limit :limit

-- name: tasks_open
select {task_columns} from tasks indexed by tasks_open
where status = 'open' and queue = :queue and {is_wanted_task} order by id limit :limit

-- name: tasks_open_anywhere
select {task_columns} from tasks indexed by tasks_open where status = 'open' and {is_wanted_task} order by id limit :limit

-- name: tasks_all
select {task_columns} from tasks where {is_wanted_task} order by id limit :limit

-- name: tasks
select {task_columns} from tasks where id in (select value from json_each(:ids))

-- name: free_tasks
-- Open tasks of a queue that no worker has claimed.
select id from tasks indexed by tasks_open
where status = 'open' and queue = :queue and (lease_until is null or lease_until <= :at) order by id limit :limit

-- name: claim_task
update tasks set worker = :worker, lease_us = :lease_us, lease_until = :lease_until, beat_at = :at, claims = claims + 1,
    actor = :actor
where id = :id

-- name: renew_lease
-- A heartbeat of the worker that has claimed a task.
update tasks set lease_until = :at + lease_us, beat_at = :at, details = coalesce(:details, details), actor = :actor
where id = :id and status = 'open' and worker = :worker

-- name: release_task
-- The worker that has claimed a task gives it back.
update tasks set worker = null, lease_until = null, beat_at = :at, error = coalesce(:error, error), actor = :actor
where id = :task_id and status = 'open' and worker = :worker
