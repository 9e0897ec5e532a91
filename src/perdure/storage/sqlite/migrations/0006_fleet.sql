-- Versions of workflows, and when a reply was given.

update engines set workflows = (
    select coalesce(json_group_array(json_array(value, '')), '[]') from json_each(engines.workflows)
);

alter table mail_replies add column at integer not null default 0;
create index mail_replies_at on mail_replies (at);

drop index runs_awake;
create index runs_awake on runs (owner, workflow, workflow_version, created_at, id)
    where (status = 'created' or status = 'running' or status = 'cancelling' or status = 'rolling_back');
