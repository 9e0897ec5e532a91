-- Starts in callers' own transactions.

-- How many of these new runs were inserted: one whose id is taken is not.
create function insert_runs_v1(new_runs new_run_v1[]) returns bigint language plpgsql as $$
declare
    written bigint;
    last_number bigint;
begin
    -- A run that does not know its place among the batch's numbers was born after all that have been given so far.
    select last_value << 20 into last_number from blocks;
    insert into runs (
        id, workflow, model, parent_id, bond, created_at, workflow_version, status, version, revision, owner, claim,
        tags, hold_kind, hold_fingerprint, hold, deadline, attempt, recoveries, undo, origin, started_at, updated_at,
        completed_at, input, output, failure, born
    )
    select
        id, workflow, model, parent_id, bond, created_at, workflow_version, status, version, revision, owner, claim,
        tags, hold_kind, hold_fingerprint, hold, deadline, attempt, recoveries, undo, origin, started_at, updated_at,
        completed_at, input, output, failure, coalesce(born, last_number)
    from unnest(new_runs)
    on conflict (id) do nothing;
    get diagnostics written = row_count;
    return written;
end
$$;

-- As before, with the same statement as everybody else who inserts runs.
create or replace function write_runs_v1(new_runs new_run_v1[], changed_runs changed_run_v1[]) returns void
language plpgsql as $$
declare
    written bigint;
begin
    if cardinality(new_runs) > 0 and insert_runs_v1(new_runs) <> cardinality(new_runs) then
        raise exception 'an id is taken' using errcode = 'PD001';
    end if;
    if cardinality(changed_runs) > 0 then
        update runs set
            workflow_version = new.workflow_version, status = new.status, version = new.version,
            revision = new.revision, owner = new.owner, claim = new.claim, tags = new.tags, hold_kind = new.hold_kind,
            hold_fingerprint = new.hold_fingerprint, hold = new.hold, deadline = new.deadline, attempt = new.attempt,
            recoveries = new.recoveries, undo = new.undo, origin = new.origin, started_at = new.started_at,
            updated_at = new.updated_at, completed_at = new.completed_at,
            output = case when new.has_outcome then new.output else runs.output end,
            failure = case when new.has_outcome then new.failure else runs.failure end,
            workflow = case when new.has_input then new.workflow else runs.workflow end,
            input = case when new.has_input then new.input else runs.input end
        from unnest(changed_runs) as new
        where runs.id = new.id and runs.version = new.expected_version and runs.claim = new.expected_claim
            and runs.owner is not distinct from new.expected_owner;
        get diagnostics written = row_count;
        if written <> cardinality(changed_runs) then
            raise exception 'a run is not as expected' using errcode = 'PD001';
        end if;
    end if;
end
$$;

-- Insert a new run with its first audit row, both as text, in the transaction of somebody whose settings are not known. What
-- it comes to is returned, since an error would be the end of that transaction:
--   inserted, or taken: the id was there
--   detached   the transaction is not the one that began at that time, so every statement is one of its own
--   read-only  nothing may be written in it
--   foreign    the engine that asks is not one of this schema
create function start_v1(engine text, began text, run text, note text) returns text
language plpgsql set search_path from current as $$
declare
    w writes_v1;
begin
    if extract(epoch from transaction_timestamp())::text <> began then
        return 'detached';
    end if;
    if current_setting('transaction_read_only')::boolean then
        return 'read-only';
    end if;
    if not exists (select 1 from engines where id = engine) then
        return 'foreign';
    end if;
    if insert_runs_v1(array[run::new_run_v1]) = 0 then
        return 'taken';
    end if;
    w.audit := array[note::audit_v1];
    w.mail := '{}';
    perform write_rest_v1(w);
    return 'inserted';
end
$$;
