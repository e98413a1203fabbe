//! What `--trace` names: a file, or a workload that is made up, as `generated:chat,seed=7`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Begins the name of a workload that is made up.
const PREFIX: &str = "generated:";
/// Most sessions: the requests of that many take a few GiB.
const MOST_SESSIONS: f64 = 1_000_000.0;
/// Largest number of any other kind.
const MOST: f64 = 1_000_000.0;

/// Requests to replay.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum TraceSource {
    /// Of a file.
    File(PathBuf),
    /// Made up.
    Generated(Workload),
}

/// A workload of sessions. Lengths are in tokens, on average.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Workload {
    /// As it was given.
    text: String,
    /// Another seed gives other requests of the same kind.
    pub(crate) seed: u64,
    /// Sessions in all.
    pub(crate) sessions: u32,
    /// Sessions that begin in a second.
    pub(crate) per_s: f64,
    /// Requests of a session: it is abandoned after each with the same probability.
    pub(crate) turns: f64,
    /// Seconds between two requests of a session.
    pub(crate) think_s: f64,
    /// System prompts, or documents, of which each session has one.
    pub(crate) prompts: u32,
    /// The prompt of rank r is chosen in proportion to r to the power of minus this.
    pub(crate) zipf: f64,
    /// Length of a prompt.
    pub(crate) prompt: f64,
    /// Length of what a session's first request adds to it.
    pub(crate) first: f64,
    /// Length of what each further request adds, and of the answer before it.
    pub(crate) question: f64,
    /// See `question`.
    pub(crate) answer: f64,
    /// Whether a last block that is not full is stored.
    pub(crate) partial: bool,
}

impl Workload {
    fn preset(name: &str) -> Option<Self> {
        let chat = Self {
            text: String::new(),
            seed: 1,
            sessions: 3000,
            per_s: 1.0,
            turns: 4.0,
            think_s: 60.0,
            prompts: 40,
            zipf: 1.0,
            prompt: 1500.0,
            first: 4000.0,
            question: 400.0,
            answer: 400.0,
            partial: true,
        };
        match name {
            "chat" => Some(chat),
            "agents" => Some(Self {
                sessions: 800,
                per_s: 0.2,
                turns: 15.0,
                think_s: 8.0,
                prompts: 12,
                prompt: 6000.0,
                first: 2000.0,
                question: 1200.0,
                answer: 250.0,
                partial: false,
                ..chat
            }),
            "documents" => Some(Self {
                sessions: 5000,
                per_s: 1.5,
                turns: 2.0,
                think_s: 40.0,
                prompts: 1200,
                zipf: 0.8,
                prompt: 20_000.0,
                first: 100.0,
                question: 100.0,
                answer: 300.0,
                ..chat
            }),
            _ => None,
        }
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        if name == "seed" {
            self.seed =
                value.parse().map_err(|_| format!("seed is a whole number, not {value}"))?;
            return Ok(());
        }
        let (least, most) = match name {
            "sessions" | "prompts" => (1.0, MOST_SESSIONS),
            "per-s" => (0.001, MOST),
            "turns" | "prompt" | "first" | "question" | "answer" => (1.0, MOST),
            "think-s" => (0.0, MOST),
            "zipf" => (0.0, 10.0),
            "partial" => (0.0, 1.0),
            _ => {
                return Err(format!(
                    "there is no {name}: give seed, sessions, per-s, turns, think-s, prompts, \
                     zipf, prompt, first, question, answer or partial"
                ));
            }
        };
        let number = value.parse().ok().filter(|n: &f64| (least..=most).contains(n));
        let number = number.ok_or_else(|| format!("{name} is {least} to {most}, not {value}"))?;
        match name {
            "sessions" => self.sessions = number as u32,
            "prompts" => self.prompts = number as u32,
            "per-s" => self.per_s = number,
            "turns" => self.turns = number,
            "think-s" => self.think_s = number,
            "zipf" => self.zipf = number,
            "prompt" => self.prompt = number,
            "first" => self.first = number,
            "question" => self.question = number,
            "answer" => self.answer = number,
            _ => self.partial = number > 0.0,
        }
        Ok(())
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let preset = parts.next().and_then(Self::preset);
        let mut workload = preset.ok_or("begin with chat, agents or documents")?;
        for part in parts {
            let (name, value) = part.split_once('=').ok_or("write name=value, as seed=7")?;
            workload.set(name, value)?;
        }
        Ok(Self { text: text.to_string(), ..workload })
    }
}

impl FromStr for TraceSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix(PREFIX) {
            Some(workload) => workload.parse().map(Self::Generated),
            None if text.is_empty() => Err("give a file".to_string()),
            None => Ok(Self::File(PathBuf::from(text))),
        }
    }
}

/// As a report names it: a file without its folders.
impl fmt::Display for TraceSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => {
                write!(f, "{}", path.file_name().unwrap_or(path.as_os_str()).to_string_lossy())
            }
            Self::Generated(workload) => write!(f, "{PREFIX}{}", workload.text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{TraceSource, Workload};
    use std::path::PathBuf;

    #[test]
    fn a_name_that_is_not_generated_is_a_file() {
        let source: TraceSource = "/a/chat.jsonl".parse().unwrap();
        assert_eq!(source, TraceSource::File(PathBuf::from("/a/chat.jsonl")));
        assert_eq!(source.to_string(), "chat.jsonl");
    }

    #[test]
    fn numbers_of_a_preset_can_be_changed() {
        let text = "generated:agents,seed=9,sessions=5,per-s=0.5,turns=2,think-s=0,prompts=3,\
                    zipf=2,prompt=4,first=5,question=6,answer=7,partial=1";
        let source: TraceSource = text.parse().unwrap();
        assert_eq!(source.to_string(), text);
        let wanted = Workload {
            text: text.strip_prefix("generated:").unwrap().to_string(),
            seed: 9,
            sessions: 5,
            per_s: 0.5,
            turns: 2.0,
            think_s: 0.0,
            prompts: 3,
            zipf: 2.0,
            prompt: 4.0,
            first: 5.0,
            question: 6.0,
            answer: 7.0,
            partial: true,
        };
        assert_eq!(source, TraceSource::Generated(wanted));
    }

    #[test]
    fn what_cannot_be_made_is_refused() {
        for text in ["", "talk", "chat,seed", "chat,seed=-1", "chat,turns=0", "chat,size=3"] {
            assert!(text.parse::<Workload>().is_err(), "{text}");
        }
        for value in ["nan", "inf", "-1", "1e9", ""] {
            assert!(format!("chat,zipf={value}").parse::<Workload>().is_err(), "{value}");
        }
    }
}
