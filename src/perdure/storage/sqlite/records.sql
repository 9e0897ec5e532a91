-- The queries of records. As in queries.sql, a comment with its name starts a query.

-- name: record_columns
-- A record, in the order of the fields of kernel.records.Record.
kind, name, version, digest, actor, at, body

-- name: insert_record
-- Insert a record if it is the next version of its name.
insert into records (kind, name, version, digest, actor, at, body)
select :kind, :name, :version, :digest, :actor, :at, :body
where :version = 1 + coalesce((select max(version) from records where kind = :kind and name = :name), 0)
on conflict do nothing

-- name: newest_record
select {record_columns} from records where kind = :kind and name = :name order by version desc limit 1

-- name: record
select {record_columns} from records where kind = :kind and name = :name and version = :version

-- name: records
select {record_columns} from records as newest
where kind = :kind and (:after is null or name > :after)
    and version = (select max(version) from records where kind = newest.kind and name = newest.name)
order by name limit :limit

-- name: record_versions
select {record_columns} from records
where (kind, name, version) > (:kind, :name, :version) and at >= :since order by kind, name, version limit :limit
