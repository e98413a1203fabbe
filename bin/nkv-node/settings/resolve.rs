//! Decides which source wins for one setting, and records it: every value taken becomes a line with
//! its source. No setting is named here.

use super::{SettingsError, file};
use crate::flags::{Flags, SETTINGS, Setting};
use crate::launcher::{Env, Family, get};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// One effective value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    /// The setting's key.
    pub(crate) key: &'static str,
    /// Its value, as TOML.
    pub(crate) value: String,
    /// Where it came from.
    pub(crate) source: String,
}

/// What the user set, in order of precedence.
pub(super) struct Layers<'a> {
    flags: &'a Flags,
    env: &'a Env,
    file: Option<(PathBuf, BTreeMap<String, String>)>,
}

impl<'a> Layers<'a> {
    /// Reads the file that the flags or `NKV_CONFIG` name.
    pub(super) fn new(flags: &'a Flags, env: &'a Env) -> Result<Self, SettingsError> {
        let named = flags.config.clone().or_else(|| get(env, "NKV_CONFIG").map(PathBuf::from));
        let file = match named {
            Some(path) => {
                let values = file::load(&path)?;
                Some((path, values))
            }
            None => None,
        };
        Ok(Self { flags, env, file })
    }

    /// True if the user set it.
    pub(super) fn has(&self, key: &str) -> bool {
        SETTINGS.iter().any(|s| s.key == key && self.find(*s).is_some())
    }

    /// The text that wins, and its source.
    fn find(&self, setting: Setting) -> Option<(&str, String)> {
        if let Some(text) = self.flags.values.get(setting.key) {
            return Some((text, format!("--{}", setting.flag())));
        }
        let variable = setting.variable();
        if let Some(text) = get(self.env, &variable) {
            return Some((text, variable));
        }
        let (path, values) = self.file.as_ref()?;
        values.get(setting.key).map(|text| (text.as_str(), path.display().to_string()))
    }
}

/// Takes one value after another and records each with its source.
pub(super) struct Resolver<'a> {
    layers: &'a Layers<'a>,
    family: Option<Family>,
    lines: Vec<Line>,
}

impl<'a> Resolver<'a> {
    pub(super) fn new(layers: &'a Layers<'a>, family: Option<Family>) -> Self {
        Self { layers, family, lines: Vec::new() }
    }

    /// The user's value, else `default`.
    pub(super) fn take<T: ToString>(
        &mut self,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, String>,
        default: T,
    ) -> Result<T, SettingsError> {
        self.take_or(key, parse, default, "default".to_string())
    }

    /// The user's value, else the launcher's, else `default`.
    pub(super) fn take_detected<T: ToString>(
        &mut self,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, String>,
        detected: Option<T>,
        default: T,
    ) -> Result<T, SettingsError> {
        match (detected, self.family) {
            (Some(detected), Some(family)) => {
                self.take_or(key, parse, detected, family.to_string())
            }
            _ => self.take(key, parse, default),
        }
    }

    /// The user's value, else `other` with its source.
    pub(super) fn take_or<T: ToString>(
        &mut self,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, String>,
        other: T,
        source: String,
    ) -> Result<T, SettingsError> {
        let (value, source) = match self.parsed(key, parse)? {
            Some(found) => found,
            None => (other, source),
        };
        self.lines.push(Line { key, value: toml_value(&value.to_string()), source });
        Ok(value)
    }

    /// The user's value, without taking it.
    pub(super) fn peek<T>(
        &self,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<T>, SettingsError> {
        Ok(self.parsed(key, parse)?.map(|(value, _)| value))
    }

    /// True if the user set it.
    pub(super) fn has(&self, key: &str) -> bool {
        self.layers.has(key)
    }

    /// The source in which the user set it.
    pub(super) fn source(&self, key: &str) -> Option<String> {
        let setting = SETTINGS.iter().find(|s| s.key == key)?;
        self.layers.find(*setting).map(|(_, source)| source)
    }

    /// Records a value that was decided elsewhere.
    pub(super) fn note(&mut self, key: &'static str, value: &str, source: &str) {
        self.lines.push(Line { key, value: toml_value(value), source: source.to_string() });
    }

    /// The record, in the order of the table.
    pub(super) fn into_lines(self) -> Vec<Line> {
        let mut lines = self.lines;
        let place = |line: &Line| SETTINGS.iter().position(|s| s.key == line.key);
        lines.sort_by_key(place);
        lines
    }

    fn parsed<T>(
        &self,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<(T, String)>, SettingsError> {
        let setting = SETTINGS.iter().find(|s| s.key == key);
        let Some((text, source)) = setting.and_then(|s| self.layers.find(*s)) else {
            return Ok(None);
        };
        let wrong = |why: String| {
            let name = if source.starts_with("--") || source.starts_with("NKV_") {
                source.clone()
            } else {
                format!("{source}, {key}")
            };
            SettingsError::Config(format!("{name} \"{}\": {why}", text.escape_debug()))
        };
        parse(text).map(|value| Some((value, source.clone()))).map_err(wrong)
    }
}

/// Text as a TOML value: bare where it is a number or a switch, quoted elsewhere.
fn toml_value(text: &str) -> String {
    let bare = text.parse::<i64>().is_ok_and(|n| n.to_string() == text)
        || matches!(text, "true" | "false");
    if bare { text.to_string() } else { toml::Value::String(text.to_string()).to_string() }
}
