# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Checks and conditions of the tests; $work and $cuboid are set. To be sourced.
work=${work:?} cuboid=${cuboid:?}

losses() { sed 's/.*"loss": *\([^,]*\),.*"grad_norm": *\([^,]*\),.*/\1 \2/' "$1/metrics.jsonl"; }
steps() { if [ -e "$1/metrics.jsonl" ]; then wc -l <"$1/metrics.jsonl"; else echo 0; fi; }

show_logs() { # Before Slurm is stopped.
    sinfo -N || true
    squeue || true
    tail -n 20 "$work"/*/slurm-*.log "$work"/*.log 2>/dev/null || true
}

check() { # WHAT COMMAND...
    local what=$1
    shift
    if "$@"; then echo "ok      $what ($((SECONDS)) s)"; else
        echo "FAILED  $what"
        exit 1
    fi
}

wait_for() { # SECONDS COMMAND...
    local until=$((SECONDS + $1))
    shift
    while ! "$@"; do
        if [ $SECONDS -ge $until ]; then
            echo "no longer waits for: $*"
            return 1
        fi
        sleep 0.1
    done
}

has_steps() { [ "$(steps "$1")" -ge "$2" ]; }
state_is() { [[ " $2 " == *" $(scontrol show job -o "$1" | sed 's/.*JobState=\([A-Z]*\).*/\1/') "* ]]; }
restarts_of() { scontrol show job -o "$1" | sed 's/.*Restarts=\([0-9]*\).*/\1/'; }
# Slurm waits for two minutes before it starts a requeued job again, until nodes have cleaned up after its steps; here,
# for as long as their slurmstepd run.
restarted() {
    ! pgrep -f "^slurmstepd: \[$1\." >/dev/null || state_is "$1" "RUNNING COMPLETED" || return 1
    scontrol update "jobid=$1" StartTime=now 2>/dev/null || true
    state_is "$1" "RUNNING COMPLETED"
}
has_restarts() { [ "$(restarts_of "$1")" -ge "$2" ]; }

# Compares the first N steps of two runs, bitwise.
same_losses() { # N RUN RUN
    diff <(losses "$2" | head -n "$1") <(losses "$3" | head -n "$1") >"$work/diff.log"
}
log_has() { grep -qs "$2" "$1"/slurm-*.log; } # RUN WORDS

# Makes the data, and the recipe of all runs: four ranks on two nodes.
make_recipe() {
    head -c 400000 README.md docs/*.md trainer/*/*.c >"$work/text.txt"
    "$cuboid" data prepare "$work/text.txt" -o "$work/text" >/dev/null
    # shellcheck disable=SC2034
    recipe=("$PWD/recipes/quickstart.yaml" "data.train=$work/text" train.eval_interval=0 optimizer.lr_warmup_iters=2
        model.seq_length=32 model.hidden_size=48 model.ffn_hidden_size=64 tp=1 pp=2 dp=2
        parallel.sequence_parallel=false cluster.threads_per_rank=1 logging.log_interval=100)
}
