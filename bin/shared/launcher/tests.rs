//! Tables of environments and what [`detect`] makes of them.

use super::{Env, Family, Launcher, LauncherError, detect, job};

const TORCHRUN: &str = "RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=a \
                        MASTER_PORT=29500 TORCHELASTIC_RUN_ID=none";
const OPEN_MPI: &str = "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=5 \
                        OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1";
const SLURM: &str = "SLURM_PROCID=2 SLURM_NTASKS=3 SLURM_LOCALID=0 SLURM_JOB_ID=77 \
                     SLURM_STEP_ID=0 SLURM_STEP_NODELIST=n[01-03] SLURM_LAUNCH_NODE_IPADDR=x";
const BATCH: &str = "SLURM_PROCID=0 SLURM_NTASKS=3 SLURM_JOB_ID=77 SLURM_JOB_NODELIST=n[01-03]";

fn env(text: &str) -> Env {
    let pair = |word: &str| word.split_once('=').map(|(k, v)| (k.to_string(), v.to_string()));
    text.split_whitespace().filter_map(pair).collect()
}

fn found(text: &str) -> Option<Launcher> {
    detect(&env(text)).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn family(text: &str) -> Option<Family> {
    found(text).map(|launcher| launcher.family)
}

#[test]
fn without_a_launcher_there_are_no_facts() {
    for text in ["", "PATH=/bin HOME=/root", "LOCAL_RANK=0", "RANK= WORLD_SIZE= MASTER_ADDR="] {
        assert_eq!(found(text), None, "{text}");
    }
}

#[test]
fn torchrun_tells_rank_size_and_where_rank_0_is() {
    assert_eq!(
        found(TORCHRUN),
        Some(Launcher {
            family: Family::Torchrun,
            rank: 1,
            world_size: 4,
            local_rank: Some(1),
            local_world_size: Some(2),
            master_host: Some("a".to_string()),
            one_host: false,
        })
    );
}

#[test]
fn open_mpi_does_not_tell_where_rank_0_is() {
    assert_eq!(
        found(OPEN_MPI),
        Some(Launcher {
            family: Family::OpenMpi,
            rank: 2,
            world_size: 5,
            local_rank: Some(0),
            local_world_size: Some(1),
            master_host: None,
            one_host: false,
        })
    );
}

#[test]
fn slurm_tells_the_first_host_of_the_step() {
    assert_eq!(
        found(SLURM),
        Some(Launcher {
            family: Family::Slurm,
            rank: 2,
            world_size: 3,
            local_rank: Some(0),
            local_world_size: None,
            master_host: Some("n01".to_string()),
            one_host: false,
        })
    );
}

#[test]
fn a_complete_set_wins_torchrun_before_open_mpi_before_slurm() {
    for (sets, expected) in [
        (vec![TORCHRUN, OPEN_MPI, SLURM], Family::Torchrun),
        (vec![TORCHRUN, SLURM], Family::Torchrun),
        (vec![TORCHRUN, OPEN_MPI], Family::Torchrun),
        (vec![OPEN_MPI, SLURM], Family::OpenMpi),
        (vec![SLURM], Family::Slurm),
        // A complete set wins over an incomplete set of a launcher with higher precedence.
        (vec!["MASTER_ADDR=a", SLURM], Family::Slurm),
        (vec!["RANK=0", OPEN_MPI], Family::OpenMpi),
        (vec!["WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK=0", SLURM], Family::Slurm),
        // A batch script's variables are ignored beside another launcher too.
        (vec![TORCHRUN, BATCH], Family::Torchrun),
    ] {
        assert_eq!(family(&sets.join(" ")), Some(expected), "{sets:?}");
    }
}

#[test]
fn torchrun_within_a_step_of_one_task_is_torchruns() {
    let text = "RANK=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=localhost SLURM_PROCID=0 \
                SLURM_NTASKS=1 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=n1";
    let launcher = found(text).unwrap();
    assert_eq!((launcher.family, launcher.rank, launcher.world_size), (Family::Torchrun, 1, 2));
    assert!(launcher.one_host);
}

#[test]
fn slurm_counts_only_within_a_step() {
    assert_eq!(found(BATCH), None);
    assert_eq!(found(&format!("{BATCH} SLURM_STEP_NODELIST=n1")), None);
    assert_eq!(found("SLURM_STEP_ID=0"), None);
}

#[test]
fn half_a_set_is_an_error_that_names_what_is_missing() {
    for (text, missing) in [
        ("RANK=0", vec!["WORLD_SIZE", "MASTER_ADDR"]),
        ("RANK=0 WORLD_SIZE=2", vec!["MASTER_ADDR"]),
        ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=", vec!["MASTER_ADDR"]),
        ("WORLD_SIZE=2 MASTER_ADDR=a", vec!["RANK"]),
        ("MASTER_ADDR=a", vec!["RANK", "WORLD_SIZE"]),
        ("OMPI_COMM_WORLD_RANK=0", vec!["OMPI_COMM_WORLD_SIZE"]),
        ("OMPI_COMM_WORLD_SIZE=2", vec!["OMPI_COMM_WORLD_RANK"]),
        ("SLURM_STEP_ID=0 SLURM_PROCID=0", vec!["SLURM_NTASKS", "SLURM_STEP_NODELIST"]),
        ("SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=3", vec!["SLURM_STEP_NODELIST"]),
        ("SLURM_STEP_ID=0 SLURM_NTASKS=3 SLURM_STEP_NODELIST=n1", vec!["SLURM_PROCID"]),
        // Of two incomplete sets, the error names the first launcher.
        ("RANK=0 OMPI_COMM_WORLD_RANK=0", vec!["WORLD_SIZE", "MASTER_ADDR"]),
    ] {
        let error = detect(&env(text)).expect_err(text);
        assert!(
            matches!(&error, LauncherError::Half { missing: found, .. } if *found == missing),
            "{text}: {error:?}"
        );
        let sentence = error.to_string();
        assert!(missing.iter().all(|name| sentence.contains(name)), "{sentence}");
        assert!(!sentence.contains('\n'), "{sentence}");
    }
}

#[test]
fn numbers_that_are_none_are_refused_by_name() {
    for (text, name) in [
        ("RANK=a WORLD_SIZE=2 MASTER_ADDR=a", "RANK"),
        ("RANK=-1 WORLD_SIZE=2 MASTER_ADDR=a", "RANK"),
        ("RANK=2 WORLD_SIZE=2 MASTER_ADDR=a", "RANK"),
        ("RANK=0 WORLD_SIZE=0 MASTER_ADDR=a", "RANK"),
        ("RANK=0 WORLD_SIZE=2.5 MASTER_ADDR=a", "WORLD_SIZE"),
        ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=a LOCAL_WORLD_SIZE=x", "LOCAL_WORLD_SIZE"),
        ("OMPI_COMM_WORLD_RANK=5000000000 OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK"),
        (
            "SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=3 SLURM_STEP_NODELIST=n[3-1]",
            "SLURM_STEP_NODELIST",
        ),
    ] {
        let error = detect(&env(text)).expect_err(text);
        assert!(
            matches!(&error, LauncherError::Bad { name: found, .. } if *found == name),
            "{text}: {error:?}"
        );
    }
}

#[test]
fn a_launcher_that_keeps_to_one_host_is_known_to() {
    for (text, expected) in [
        ("RANK=0 WORLD_SIZE=3 LOCAL_WORLD_SIZE=3 MASTER_ADDR=box.lan", true),
        ("RANK=0 WORLD_SIZE=3 LOCAL_WORLD_SIZE=1 MASTER_ADDR=box.lan", false),
        ("RANK=0 WORLD_SIZE=3 MASTER_ADDR=box.lan", false),
        ("RANK=0 WORLD_SIZE=1 MASTER_ADDR=box.lan", true),
        ("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=2", true),
        ("SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=3 SLURM_STEP_NODELIST=box", true),
        ("SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=3 SLURM_STEP_NODELIST=n[1-2]", false),
    ] {
        assert_eq!(found(text).unwrap().one_host, expected, "{text}");
    }
}

#[test]
fn the_job_is_torchruns_run_id_else_slurms_job_and_step() {
    for (text, expected) in [
        ("", None),
        ("TORCHELASTIC_RUN_ID=none", None),
        ("TORCHELASTIC_RUN_ID=none MASTER_PORT=29500", Some("torchrun-29500")),
        ("MASTER_PORT=29500", None),
        ("TORCHELASTIC_RUN_ID=train7", Some("train7")),
        ("TORCHELASTIC_RUN_ID=train7 SLURM_JOB_ID=77 SLURM_STEP_ID=1", Some("train7")),
        ("TORCHELASTIC_RUN_ID=none SLURM_JOB_ID=77 SLURM_STEP_ID=1", Some("77.1")),
        ("TORCHELASTIC_RUN_ID= SLURM_JOB_ID=77 SLURM_STEP_ID=1", Some("77.1")),
        ("SLURM_JOB_ID=77", None),
        ("SLURM_STEP_ID=1", None),
    ] {
        assert_eq!(job(&env(text)).map(|(job, _)| job).as_deref(), expected, "{text}");
    }
}
