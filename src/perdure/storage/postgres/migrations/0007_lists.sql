-- Listings of runs: each status, and each workflow in each status, newest first. Listings of several statuses merge them, so
-- these two answer what runs_created and runs_unsuccessful did. A change of status touches both, which is what they cost.

drop index runs_created;
drop index runs_unsuccessful;
create index runs_status on runs (status, created_at, id);
create index runs_workflow on runs (workflow, status, created_at, id);

drop index runs_held;
create index runs_held on runs (hold_kind, created_at, id) where hold_kind is not null;
