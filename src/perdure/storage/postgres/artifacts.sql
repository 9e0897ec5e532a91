-- The queries of artifacts. As in queries.sql, a comment with its name starts a query.

-- name: artifact_columns
-- An artifact without content, in the order of the fields of kernel.artifacts.Artifact.
id, run_id, name, type, form, media_type, size, digest, workflow, step, position, attempt, seq, number, state, version,
staged_at, published_at, chunks

-- name: visible
-- Published artifacts. If requested, also staged artifacts.
(state = 'published' or (:staged::boolean and state = 'staged'))

-- name: artifacts_within
-- Whether the run belongs to the runs of a list. If the list has no limit on runs, all runs do.
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
-- An artifact that is not set aside, with its content.
select {artifact_columns}, content from artifacts where id = :id and state <> 'aside'

-- name: artifact_version
select {artifact_columns}, content from artifacts where version is not null and name = :name and version = :version

-- name: newest_artifact
select {artifact_columns}, content from artifacts where version is not null and name = :name order by version desc limit 1

-- name: chunk
select data from artifact_chunks where artifact_id = :artifact_id and number = :number
