//! `settings.md`: every setting of `nkv-node` from its help, and the fields of the library's
//! configurations from the sources and their `Default`. Ranges and defaults are checked: the
//! program is started with the ends of each range and with values beyond them.

use crate::reference::page::{Page, output_of, run};
use crate::reference::sources;
use nkv::{ClientConfig, NodeConfig, PutOptions};
use std::collections::BTreeMap;

const NODE: &str = env!("CARGO_BIN_EXE_nkv-node");

/// A setting as the help shows it.
#[derive(Debug)]
struct Setting {
    flag: String,
    value: String,
    help: String,
    range: String,
    default: String,
}

#[test]
fn settings_is_what_the_node_and_the_library_say() {
    let mut page = Page::new(
        "settings.md",
        "Settings: reference",
        "Flags win over `NKV_*` variables over `--config FILE` (TOML) over what torchrun, Open MPI \
         or Slurm export over defaults. `nkv-node --print-config` shows every value with its \
         source. Sizes take KiB, MiB, GiB and TiB; a name that ends in `_ms` is in milliseconds.",
    );
    page.section("nkv-node");
    let rows = settings().into_iter().map(|s| {
        let key = s.flag.replace('-', "_");
        let variable = format!("`NKV_{}`", key.to_uppercase());
        let value = if s.value.is_empty() { "BOOL".to_string() } else { s.value };
        let flag = format!("`--{}`", s.flag);
        vec![flag, variable, format!("`{key}`"), format!("`{value}`"), s.range, s.default, s.help]
    });
    let head = ["flag", "variable", "key in the file", "value", "range", "default", "meaning"];
    page.table(&head, &rows.collect::<Vec<_>>());
    page.text(
        "`--no-prefault` is `prefault = false`, `--pool-pinned` is `pool_pinned = true`. \
         `NKV_SECRET` holds the secret itself, which no flag does. `NKV_CONFIG` names the file of \
         settings.",
    );
    let sources = sources::all();
    for (name, about, defaults) in [
        ("NodeConfig", "Of a node in this process.", format!("{:#?}", NodeConfig::default())),
        ("ClientConfig", "Of a client handle.", format!("{:#?}", ClientConfig::default())),
        ("PutOptions", "Of one put.", format!("{:#?}", PutOptions::default())),
    ] {
        page.section(name);
        page.text(about);
        let defaults = fields(&defaults);
        let header = format!("pub struct {name}");
        let items = sources.iter().find_map(|s| sources::items(&s.text, &header));
        let rows = items.unwrap_or_else(|| panic!("no {header}")).into_iter().map(|item| {
            let default = defaults.get(&item.name);
            let default = default.unwrap_or_else(|| panic!("no default of {}", item.name));
            let cells = [format!("`{}`", item.name), format!("`{}`", item.of)];
            [&cells[..], &[format!("`{default}`"), item.doc]].concat()
        });
        page.table(&["field", "type", "default", "meaning"], &rows.collect::<Vec<_>>());
    }
    page.check();
}

/// Every setting of `nkv-node --help`: a flag with a default.
fn settings() -> Vec<Setting> {
    let help = output_of(NODE, &["--help"]);
    let mut found: Vec<Setting> = Vec::new();
    let mut flag: Option<(String, String)> = None;
    for line in help.lines() {
        if let Some(option) = line.strip_prefix("      --") {
            let (name, value) = option.split_once(' ').unwrap_or((option, ""));
            let value = value.trim_start_matches('<').trim_end_matches('>');
            flag = Some((name.to_string(), value.to_string()));
        } else if let Some((flag, value)) = flag.take()
            && let Some((help, default)) = bracketed(line.trim(), "default")
        {
            let (help, range) = bracketed(&help, "range").unwrap_or((help, String::new()));
            found.push(Setting { flag, value, help, range, default });
        }
    }
    assert!(found.iter().any(|s| s.flag == "heap-bytes"), "{help}");
    found
}

/// `text [name: value]` as text and value.
fn bracketed(text: &str, name: &str) -> Option<(String, String)> {
    let (text, value) = text.strip_suffix(']')?.rsplit_once(&format!(" [{name}: "))?;
    Some((text.to_string(), value.to_string()))
}

/// The fields of a structure in its `{:#?}` form, what is nested in one line.
fn fields(debug: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut last = String::new();
    for line in debug.lines().skip(1) {
        let Some(inner) = line.strip_prefix("    ") else { continue };
        match inner.split_once(": ").filter(|_| !inner.starts_with([' ', '}', ')'])) {
            Some((name, value)) => {
                last = name.to_string();
                found.insert(last.clone(), value.to_string());
            }
            None => {
                let value = found.get_mut(&last).expect("a field before");
                *value += &format!(" {}", inner.trim());
            }
        }
    }
    let tidy = |value: String| {
        let value = value.trim_end_matches(',').replace(", }", " }").replace("( ", "(");
        value.replace(", )", ")").replace(" )", ")")
    };
    found.into_iter().map(|(name, value)| (name, tidy(value))).collect()
}

/// What `--print-config` prints for one flag, or none if the value is refused.
fn configuration(flags: &[String]) -> Option<String> {
    let args: Vec<&str> = flags.iter().map(String::as_str).chain(["--print-config"]).collect();
    let ended = run(NODE, &args);
    assert!([0, 2].contains(&ended.code), "{args:?}: {} {}", ended.code, ended.stderr);
    (ended.code == 0).then_some(ended.stdout)
}

#[test]
fn defaults_are_those_that_a_node_runs_with() {
    let printed = configuration(&[]).expect("the defaults");
    let printed: toml::Table = printed.parse().expect("TOML");
    for s in settings() {
        let key = s.flag.replace('-', "_");
        let value = &printed[&key];
        let value = value.as_str().map_or(value.to_string(), String::from);
        // Words, such as "the launcher's, or 0", end with the value; a heap is the machine's.
        if s.flag != "heap-bytes" && s.flag != "port" {
            let shown = s.default.split(": ").next().unwrap_or_default();
            let shown = shown.rsplit(", or ").next().unwrap_or_default();
            let same = size(shown).is_some_and(|n| size(&value) == Some(n));
            assert!(value == shown || same, "{s:?}: {value}");
        }
    }
}

#[test]
fn ranges_are_those_that_a_node_takes() {
    let mut tried = 0;
    for s in settings() {
        let Some((least, most)) = s.range.split_once(" to ") else { continue };
        let (Some(least), Some(most)) = (size(least), size(most)) else { continue };
        let takes = |value: u64| configuration(&[format!("--{}={value}", s.flag)]).is_some();
        assert!(takes(least) && takes(most), "{} takes {}", s.flag, s.range);
        assert!(!takes(most + 1), "{} takes more than {most}", s.flag);
        assert!(least == 0 || !takes(least - 1), "{} takes less than {least}", s.flag);
        tried += 1;
    }
    assert!(tried >= 10, "{tried} ranges only");
}

/// A number of bytes, or a number alone.
fn size(text: &str) -> Option<u64> {
    let text = text.trim();
    let units = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)];
    let unit = units.iter().find_map(|(unit, bits)| Some((text.strip_suffix(unit)?, *bits)));
    let (number, bits) = unit.unwrap_or((text, 0));
    number.parse::<u64>().ok().map(|n| n << bits)
}
