-- An event is found among all that its run has yet to read by its id, and one that has won a position among those that have.

drop index if exists events_run;
create index events_run on events (run_id, id) where run_id is not null;
create index if not exists events_won on events (run_id, position) where position is not null;
