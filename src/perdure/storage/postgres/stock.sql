-- The queries of artifacts, tasks and records. As in queries.sql, a comment with its name starts one.

-- name: artifact_columns
-- An artifact without content, in the order of the fields of kernel.stock.Artifact.
id, run_id, name, type, form, media_type, size, digest, workflow, step, position, attempt, seq, number, state, version,
staged_at, published_at, chunks

-- name: visible
-- Those that are published, and, if asked for, those that are staged.
(state = 'published' or (:staged::boolean and state = 'staged'))

-- name: artifacts_within
-- Whether the run is one of those that a list is for; without a limit in that, all are.
(
    :workflows::text[] is null
    or exists (
        select from runs where runs.id = artifacts.run_id and (
            runs.workflow = any(:workflows)
            or exists (
                select from unnest(:tag_keys::text[], :tag_values::text[]) as wanted (key, value)
                join run_tags as found on found.key = wanted.key and found.value = wanted.value
                    and found.created_at = runs.created_at and found.run_id = runs.id
            )
        )
    )
)

-- name: artifacts_of_run
select {artifact_columns} from artifacts
where run_id = :run_id and (:after::text is null or id < :after) and {visible} and {artifacts_within} and (:name::text is null or name = :name)
    and (:type::text is null or type = :type)
order by id desc limit :limit

-- name: artifacts_of_name
select {artifact_columns} from artifacts
where name = :name and (:after::text is null or id < :after) and {visible} and {artifacts_within}
    and (:type::text is null or type = :type)
order by id desc limit :limit

-- name: artifacts_of_type
select {artifact_columns} from artifacts
where type = :type and (:after::text is null or id < :after) and {visible} and {artifacts_within} order by id desc limit :limit

-- name: artifacts_all
select {artifact_columns} from artifacts
where (:after::text is null or id < :after) and {visible} and {artifacts_within} order by id desc limit :limit

-- name: artifact
-- One that is not set aside, with its content.
select {artifact_columns}, content from artifacts where id = :id and state <> 'aside'

-- name: artifact_version
select {artifact_columns}, content from artifacts where version is not null and name = :name and version = :version

-- name: newest_artifact
select {artifact_columns}, content from artifacts where version is not null and name = :name order by version desc limit 1

-- name: chunk
select data from artifact_chunks where artifact_id = :artifact_id and number = :number

-- name: task_columns
-- A task, in the order of the fields of kernel.stock.Task.
tasks.id, tasks.run_id, tasks.position, tasks.queue, tasks.kind, tasks.title, tasks.schema, tasks.payload, tasks.status,
tasks.worker, tasks.lease_us, tasks.lease_until, tasks.beat_at, tasks.details, tasks.error, tasks.claims, tasks.due_at,
tasks.created_at, tasks.closed_at, tasks.answered_by, tasks.actor

-- name: tasks_within
-- Whether the run is one of those that a list is for; without a limit in that, all are.
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
-- The rest of a filter for tasks.
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
-- Give open ones of a queue that nobody has, and that nobody else is just taking, to a worker.
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

-- name: hold_task
update tasks set
    worker = case when :keep::boolean then worker end, lease_until = case when :keep then :at::bigint + lease_us end,
    beat_at = :at, details = coalesce(:details, details), error = coalesce(:error, error), actor = :actor
where id = :id and status = 'open' and worker = :worker returning id

-- name: put_record
select put_record_v1(:kind, :name, :digest, :actor, :at, :body)

-- name: record_columns
-- A record, in the order of the fields of kernel.stock.Record.
kind, name, version, digest, actor, at, body

-- name: newest_record
select {record_columns} from records where kind = :kind and name = :name order by version desc limit 1

-- name: record
select {record_columns} from records where kind = :kind and name = :name and version = :version

-- name: records
select distinct on (name) {record_columns} from records
where kind = :kind and (:after::text is null or name > :after) order by name, version desc limit :limit

-- name: record_versions
select {record_columns} from records
where (kind, name, version) > (:kind::text, :name::text, :version::bigint) and at >= :since::bigint order by kind, name, version limit :limit
