//! Decides which source wins for one setting, and records it: every value taken becomes a line with
//! its source. No setting is named here.

use super::file;
use crate::launcher::{Env, get};
use crate::node_settings::{KEYS, variable};
use crate::settings::Given;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// One effective value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// The setting's key.
    pub key: &'static str,
    /// Its value, as TOML.
    pub value: String,
    /// Where it came from.
    pub source: String,
}

/// Where a text comes from.
#[derive(Debug, Clone)]
enum Source {
    /// A flag, or an argument of a call.
    Typed(String),
    Variable(String),
    File(String),
}

impl Source {
    fn name(&self) -> &String {
        match self {
            Source::Typed(name) | Source::Variable(name) | Source::File(name) => name,
        }
    }
}

/// Takes one value after another and records each with its source.
pub(super) struct Resolver {
    // What the user set: each text with its source.
    given: BTreeMap<String, (String, Source)>,
    lines: Vec<Line>,
}

impl Resolver {
    /// Reads the file that `given` or `NKV_CONFIG` names. What is typed wins over variables over
    /// the file.
    pub(super) fn new(given: &Given, env: &Env) -> Result<Self, String> {
        let mut all = BTreeMap::new();
        let named = given.config.clone().or_else(|| get(env, "NKV_CONFIG").map(PathBuf::from));
        if let Some(path) = named {
            let source = Source::File(path.display().to_string());
            let found = file::load(&path)?.into_iter();
            all.extend(found.map(|(key, text)| (key, (text, source.clone()))));
        }
        for key in KEYS.iter() {
            let variable = variable(key);
            if let Some(text) = given.values.get(key.as_str()) {
                all.insert(key.clone(), (text.clone(), Source::Typed((given.named)(key))));
            } else if let Some(text) = get(env, &variable) {
                all.insert(key.clone(), (text.to_string(), Source::Variable(variable)));
            }
        }
        Ok(Self { given: all, lines: Vec::new() })
    }

    /// The user's value, else `default`.
    pub(super) fn take<T: ToString>(
        &mut self,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, String>,
        default: T,
    ) -> Result<T, String> {
        self.take_or(key, parse, default, "default")
    }

    /// The user's value, else `other` with its source.
    pub(super) fn take_or<T: ToString>(
        &mut self,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, String>,
        other: T,
        source: &str,
    ) -> Result<T, String> {
        let (value, source) = match self.given.get(key) {
            Some((text, source)) => {
                let value = parse(text).map_err(|why| {
                    let key = match source {
                        Source::Typed(_) | Source::Variable(_) => String::new(),
                        Source::File(_) => format!(", {key}"),
                    };
                    format!("{}{key} \"{}\": {why}", source.name(), text.escape_debug())
                })?;
                (value, source.name().clone())
            }
            None => (other, source.to_string()),
        };
        self.note(key, &value.to_string(), &source);
        Ok(value)
    }

    /// The user's value, else `default`; the word stands for no value.
    pub(super) fn take_unless<T: ToString>(
        &mut self,
        key: &'static str,
        word: &'static str,
        parse: impl Fn(&str) -> Result<T, String>,
        default: Option<T>,
    ) -> Result<Option<T>, String> {
        let parse = |text: &str| match text == word {
            true => Ok(OrWord(None, word)),
            false => parse(text).map(|value| OrWord(Some(value), word)),
        };
        self.take(key, parse, OrWord(default, word)).map(|taken| taken.0)
    }

    /// True if the user set it.
    pub(super) fn has(&self, key: &str) -> bool {
        self.given.contains_key(key)
    }

    /// The source in which the user set it.
    pub(super) fn source(&self, key: &str) -> Option<String> {
        self.given.get(key).map(|(_, source)| source.name().clone())
    }

    /// True if the user typed it: a flag, or an argument of a call.
    pub(super) fn is_typed(&self, key: &str) -> bool {
        self.given.get(key).is_some_and(|(_, source)| matches!(source, Source::Typed(_)))
    }

    /// Records a value that was decided elsewhere.
    pub(super) fn note(&mut self, key: &'static str, value: &str, source: &str) {
        self.lines.push(Line { key, value: toml_value(value), source: source.to_string() });
    }

    /// The record, in the order of the table.
    pub(super) fn into_lines(self) -> Vec<Line> {
        let mut lines = self.lines;
        lines.sort_by_key(|line| KEYS.iter().position(|key| key == line.key));
        lines
    }
}

/// A value, or the word that stands for none.
struct OrWord<T>(Option<T>, &'static str);

impl<T: ToString> std::fmt::Display for OrWord<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.as_ref().map_or(self.1.to_string(), T::to_string))
    }
}

/// Text as a TOML value: bare where it is a number or a switch, quoted elsewhere.
fn toml_value(text: &str) -> String {
    let bare = text.parse::<i64>().is_ok_and(|n| n.to_string() == text)
        || matches!(text, "true" | "false");
    if bare { text.to_string() } else { toml::Value::String(text.to_string()).to_string() }
}
