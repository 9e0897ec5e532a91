-- Tokens of the HTTP API and sessions of the dashboard get tables of their own: they were records, as users' own are.

-- Each version of each token; the newest of a name counts.
create table perdure_tokens (
    name text collate "C" not null,
    version bigint not null,
    digest text not null,
    actor text not null,
    at bigint not null,
    used_at bigint,
    body text not null,
    primary key (name, version)
);
insert into perdure_tokens (name, version, digest, actor, at, body)
select name, version, digest, actor, at, body from records where kind = 'perdure.api-token';

create table perdure_sessions (
    id text collate "C" primary key,
    until bigint not null,
    actor text not null,
    at bigint not null,
    body text not null
);
create index perdure_sessions_until on perdure_sessions (until);
-- A session lasted twelve hours, and had a second version once somebody had signed out.
insert into perdure_sessions (id, until, actor, at, body)
select name, at + 43200000000, actor, at, body from records as opened
where kind = 'perdure.dashboard-session' and version = 1
    and not exists (select from records where kind = opened.kind and name = opened.name and version > 1);

delete from records where kind = 'perdure.dashboard-session';
delete from records where kind = 'perdure.api-token';
-- A server of an earlier Perdure that still runs looks here whether tokens are needed. This one is valid for nothing.
insert into records (kind, name, version, digest, actor, at, body)
select 'perdure.api-token', 'moved', 1, '', 'perdure', max(at), '{"scope":"read","sha256":"","revoked":true}'
from perdure_tokens having count(*) > 0;

-- Add a version of a token, if it is the next one; whether the newest is this one then.
create function put_token_v1(
    its_name text, its_version bigint, its_digest text, its_actor text, now bigint, its_body text
) returns boolean language plpgsql as $$
declare
    newest perdure_tokens;
begin
    perform pg_advisory_xact_lock(hashtextextended(current_schema() || ':token:' || its_name, 0));
    select * into newest from perdure_tokens where name = its_name order by version desc limit 1;
    if newest.version = its_version then
        return newest.digest = its_digest;
    end if;
    if coalesce(newest.version, 0) <> its_version - 1 then
        return false;
    end if;
    insert into perdure_tokens (name, version, digest, actor, at, used_at, body)
    values (its_name, its_version, its_digest, its_actor, now, newest.used_at, its_body);
    return true;
end
$$;
