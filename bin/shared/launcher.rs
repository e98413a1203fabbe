//! What the launcher's variables say about this process: a pure function of the environment. It
//! decides nothing about other settings and never guesses: an incomplete set of variables is an
//! error that names the missing ones.

mod hosts;

use hosts::HostList;
use nkv_transport::wire::auth::{SECRET_FILE_VARIABLE, SECRET_VARIABLE};
use std::collections::BTreeMap;

/// An environment: variables by name. Empty values count as unset.
pub type Env = BTreeMap<String, String>;

/// This process's environment, without variables that are no text.
///
/// # Errors
/// If such a one should hold the secret.
pub fn environment() -> Result<Env, String> {
    let env: Env = std::env::vars_os()
        .filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)))
        .collect();
    for secret in [SECRET_VARIABLE, SECRET_FILE_VARIABLE] {
        if std::env::var_os(secret).is_some() && !env.contains_key(secret) {
            return Err(format!(
                "{secret} is no text: put the secret into a file for --secret-file"
            ));
        }
    }
    Ok(env)
}

/// The launcher that started this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// torchrun (PyTorch's elastic launcher), or anything that sets the same variables.
    Torchrun,
    /// Open MPI's mpirun.
    OpenMpi,
    /// A step of Slurm: srun.
    Slurm,
}

impl std::fmt::Display for Family {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Torchrun => "torchrun",
            Self::OpenMpi => "Open MPI",
            Self::Slurm => "Slurm",
        })
    }
}

/// What a launcher's variables contain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launcher {
    /// Which launcher.
    pub family: Family,
    /// This process's rank.
    pub rank: u32,
    /// Ranks in all.
    pub world_size: u32,
    /// This process's number among the ranks of its host, if the launcher sets it.
    pub local_rank: Option<u32>,
    /// Ranks on this host, if the launcher sets it.
    pub local_world_size: Option<u32>,
    /// Host of rank 0, if the launcher sets it.
    pub master_host: Option<String>,
    /// True if every rank runs on this host.
    pub one_host: bool,
}

/// An environment that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LauncherError {
    /// Some of a launcher's variables are set and some are not.
    #[error(
        "{family} set {} but not {}: set what is missing, or unset all of it and give --rank and \
         --world-size",
        .present.join(", "), .missing.join(", ")
    )]
    Half {
        /// The launcher.
        family: Family,
        /// Those that are set.
        present: Vec<&'static str>,
        /// Those that are not.
        missing: Vec<&'static str>,
    },
    /// A variable has an invalid value.
    #[error("{name}=\"{}\": {why}", .value.escape_debug())]
    Bad {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// What was expected.
        why: String,
    },
}

/// The variables that each launcher must set, in the order rank, world size, then the master. In
/// order of precedence: the first complete set is used.
const FAMILIES: [(Family, &[&str]); 3] = [
    (Family::Torchrun, &["RANK", "WORLD_SIZE", "MASTER_ADDR"]),
    (Family::OpenMpi, &["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"]),
    (Family::Slurm, &["SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_NODELIST"]),
];

/// The launcher's facts; `None` if no launcher started this process.
///
/// # Errors
/// If no set is complete and one is incomplete, or if a variable of the set that is used is no
/// number or no list of hosts.
pub fn detect(env: &Env) -> Result<Option<Launcher>, LauncherError> {
    let mut half = None;
    for (family, needed) in FAMILIES {
        // Outside a step (in a batch script) Slurm's variables do not describe this process.
        if family == Family::Slurm && get(env, "SLURM_STEP_ID").is_none() {
            continue;
        }
        let (present, missing): (Vec<_>, Vec<_>) =
            needed.iter().partition(|name| get(env, name).is_some());
        if missing.is_empty() {
            return facts(family, (needed[0], needed[1]), env).map(Some);
        }
        // A step id alone is not an incomplete set: every shell within a step has one.
        if !present.is_empty() {
            half.get_or_insert(LauncherError::Half { family, present, missing });
        }
    }
    half.map_or(Ok(None), Err)
}

/// The job's name from the launcher: torchrun's run id, else Slurm's job and step, else the port of
/// torchrun's agent, which no two jobs of a host share.
pub fn job(env: &Env) -> Option<(String, &'static str)> {
    // "none" is torchrun's placeholder for a job without an id.
    let run_id = get(env, "TORCHELASTIC_RUN_ID").filter(|id| *id != "none");
    if let Some(id) = run_id {
        return Some((id.to_string(), "TORCHELASTIC_RUN_ID"));
    }
    if let (Some(job), Some(step)) = (get(env, "SLURM_JOB_ID"), get(env, "SLURM_STEP_ID")) {
        return Some((format!("{job}.{step}"), "SLURM_JOB_ID, SLURM_STEP_ID"));
    }
    get(env, "TORCHELASTIC_RUN_ID")?;
    let port = get(env, "MASTER_PORT")?;
    Some((format!("torchrun-{port}"), "MASTER_PORT"))
}

/// A variable that is set and not empty.
pub fn get<'a>(env: &'a Env, name: &str) -> Option<&'a str> {
    env.get(name).map(String::as_str).filter(|value| !value.is_empty())
}

fn facts(
    family: Family,
    (rank_in, size_in): (&'static str, &'static str),
    env: &Env,
) -> Result<Launcher, LauncherError> {
    let (rank, world_size) = (number(env, rank_in)?, number(env, size_in)?);
    if rank >= world_size {
        return Err(LauncherError::Bad {
            name: rank_in,
            value: rank.to_string(),
            why: format!("ranks go from 0 to {size_in}={world_size} less one"),
        });
    }
    let (local_world_size, master_host) = match family {
        Family::Torchrun => {
            (optional_number(env, "LOCAL_WORLD_SIZE")?, get(env, "MASTER_ADDR").map(str::to_string))
        }
        Family::OpenMpi => (optional_number(env, "OMPI_COMM_WORLD_LOCAL_SIZE")?, None),
        Family::Slurm => {
            let name = "SLURM_STEP_NODELIST";
            let list = get(env, name).unwrap_or_default();
            let bad = |why| LauncherError::Bad { name, value: list.to_string(), why };
            let hosts: HostList = list.parse().map_err(bad)?;
            let one_host = hosts.count == 1 || world_size == 1;
            (one_host.then_some(world_size), Some(hosts.first))
        }
    };
    let local_rank = match family {
        Family::Torchrun => optional_number(env, "LOCAL_RANK")?,
        Family::OpenMpi => optional_number(env, "OMPI_COMM_WORLD_LOCAL_RANK")?,
        Family::Slurm => optional_number(env, "SLURM_LOCALID")?,
    };
    let one_host = world_size == 1 || local_world_size == Some(world_size);
    Ok(Launcher { family, rank, world_size, local_rank, local_world_size, master_host, one_host })
}

fn number(env: &Env, name: &'static str) -> Result<u32, LauncherError> {
    let value = get(env, name).unwrap_or_default();
    value.trim().parse().map_err(|_| LauncherError::Bad {
        name,
        value: value.to_string(),
        why: "a whole number from 0 to 4294967295 is expected".to_string(),
    })
}

fn optional_number(env: &Env, name: &'static str) -> Result<Option<u32>, LauncherError> {
    get(env, name).map(|_| number(env, name)).transpose()
}

#[cfg(test)]
mod tests;
