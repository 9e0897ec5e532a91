-- Tokens of the HTTP API and sessions of the dashboard.

-- name: token_columns
-- In the order of the fields of kernel.access.StoredToken.
name, version, digest, actor, at, used_at, body

-- name: insert_token
-- Insert a token if it is the next version of its name. The time of the last use is copied from the version before.
insert into perdure_tokens (name, version, digest, actor, at, used_at, body)
select :name, :version, :digest, :actor, :at,
    (select used_at from perdure_tokens where name = :name order by version desc limit 1), :body
where :version = 1 + coalesce((select max(version) from perdure_tokens where name = :name), 0)
on conflict do nothing

-- name: token
select {token_columns} from perdure_tokens where name = :name order by version desc limit 1

-- name: tokens
select {token_columns} from perdure_tokens as newest
where (:after is null or name > :after)
    and version = (select max(version) from perdure_tokens where name = newest.name)
order by name limit :limit

-- name: token_versions
select {token_columns} from perdure_tokens
where (name, version) > (:after_name, :after_version) order by name, version limit :limit

-- name: use_token
update perdure_tokens set used_at = :at where name = :name and coalesce(used_at, 0) < :at
    and version = (select max(version) from perdure_tokens where name = :name)

-- name: session_columns
-- In the order of the fields of kernel.access.StoredSession.
id, until, actor, at, body

-- name: put_session
insert into perdure_sessions (id, until, actor, at, body) values (:id, :until, :actor, :at, :body) on conflict (id) do nothing

-- name: session
select {session_columns} from perdure_sessions where id = :id

-- name: end_session
delete from perdure_sessions where id = :id

-- name: purge_sessions
-- Delete expired sessions. The sessions that expired first are deleted first.
delete from perdure_sessions
where id in (select id from perdure_sessions where until <= :at order by until limit :limit)
