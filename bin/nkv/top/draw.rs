//! Draws a screen: lines of text with colours, in three tables that share the height, and a curve
//! where there is room. 80 columns and 24 rows hold three ranks; more ranks are scrolled. It does
//! not depend on a terminal: without one the same lines are printed.

use super::model::{ActorRow, Health, RankRow, Rates, Screen, SsdRow};
use nkv::message::OwnerGauges;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Sparkline};

/// Cells of the bar that shows how full a heap is.
const BAR: usize = 7;
/// Columns of an actor.
const ACTOR: usize = 18;
/// Most lines about faults.
const MAX_TROUBLES: usize = 4;
/// Least and most rows of the curve, with its title.
const CURVE_ROWS: std::ops::RangeInclusive<u16> = 3..=10;
/// Rows that belong to no rank: the head, the titles, the total, blanks and the foot.
const FIXED_ROWS: u16 = 11;
/// The title of the table of SSD tiers, and its blank.
const SSD_ROWS: u16 = 2;

const DIM: Style = Style::new().fg(Color::DarkGray);
const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);

/// Puts a screen on the frame; `scroll` is the first rank that is wanted. Returns the first rank
/// shown.
pub(super) fn draw(frame: &mut Frame<'_>, screen: &Screen, scroll: usize, every: &str) -> usize {
    let area = frame.area();
    let troubles = troubles(screen).len().min(MAX_TROUBLES) as u16;
    let (tables, titles) = if has_ssd(screen) { (4, SSD_ROWS) } else { (3, 0) };
    let fixed = FIXED_ROWS + titles + troubles;
    let room = usize::from(area.height.saturating_sub(fixed) / tables).max(1);
    let shown = room.min(screen.ranks.len());
    let first = scroll.min(screen.ranks.len() - shown);
    let lines = lines(screen, first..first + shown);
    let used = lines.len() as u16;
    let [top, foot] = Layout::vertical([Constraint::Min(0), Constraint::Length(1)]).areas(area);
    frame.render_widget(Paragraph::new(lines), top);
    curve(
        frame,
        screen,
        Rect { y: top.y + used.min(top.height), height: top.height.saturating_sub(used), ..top },
    );
    frame.render_widget(Paragraph::new(footer(screen, first, shown, every)), foot);
    first
}

/// A screen as plain text, for pipes and logs: the same lines as on a terminal, every rank, without
/// colours.
pub(super) fn plain(screen: &Screen) -> String {
    let lines = lines(screen, 0..screen.ranks.len());
    lines.iter().map(|line| line.to_string().trim_end().to_string() + "\n").collect()
}

/// All lines for the ranks of a range: the head, a table each of heaps, traffic and actors, and
/// faults.
fn lines(screen: &Screen, ranks: std::ops::Range<usize>) -> Vec<Line<'static>> {
    let rows = &screen.ranks[ranks];
    // Columns for device logs, where there are any.
    let logs = screen.ranks.iter().filter_map(|r| r.heap.as_ref()).any(|h| h.log_total > 0);
    let log = |heap: Option<&OwnerGauges>| match heap {
        Some(h) if logs => {
            let (live, of) = (bytes(h.log_live_bytes as f64), bytes(h.log_total as f64));
            format!(" {live:>9} {of:>9}")
        }
        _ => String::new(),
    };
    let traffic =
        |r: &RankRow| traffic_line(&r.rank.to_string(), r.rates.as_ref(), &log(r.heap.as_ref()));
    let mut lines = head(screen);
    lines.extend([Line::default(), title(HEAPS)]);
    lines.extend(rows.iter().map(heap_line));
    lines.extend([Line::default(), title(&format!("{TRAFFIC}{}", if logs { LOGS } else { "" }))]);
    lines.extend(rows.iter().map(traffic));
    lines.push(traffic_line("all", Some(&screen.total), ""));
    if has_ssd(screen) {
        lines.extend([Line::default(), title(SSDS)]);
        lines.extend(rows.iter().map(|row| ssd_line(row.rank, row.ssd.as_ref())));
    }
    lines.extend([Line::default(), title(&actor_titles(rows))]);
    lines.extend(rows.iter().map(actors_line));
    lines.extend(troubles(screen).into_iter().take(MAX_TROUBLES));
    lines
}

const HEAPS: &str =
    "RANK STATE       HEAP USED         OF     LIVE     HELD     HOLE OBJECTS  HEARD";
const TRAFFIC: &str = "RANK   GETS/s   READ B/s   PUTS/s  WRITE B/s  EVICT/s";
const SSDS: &str = "RANK SSD USED          OF OBJECTS  SAVED/s PROMOTED/s  PENDING     LOST";
const LOGS: &str = "  LOG LIVE        OF";

fn head(screen: &Screen) -> Vec<Line<'static>> {
    let complete = screen.members == screen.world_size as usize;
    let too_few = if screen.serves { "" } else { ", too few: the master serves nothing" };
    let members = format!("{} of {} ranks{too_few}", screen.members, screen.world_size);
    let mut first = vec![
        Span::styled("nkv top", BOLD),
        Span::raw(format!("   job {}   ", screen.job)),
        Span::styled(members, if complete { Style::new() } else { colour(Health::Bad) }),
    ];
    let second = match (&screen.master, &screen.master_lost) {
        (Some(m), _) => {
            let of = format!("   master rank {}, term {}   {}", m.rank, m.term, m.placement);
            first.push(Span::styled(of, DIM));
            let per_s = m.lookups_per_s.map_or("-".to_string(), number);
            vec![
                Span::raw(format!(
                    "objects {}   plans {}   waiting {}   lookups {per_s}/s   hit ",
                    m.objects, m.plans_open, m.waiting
                )),
                Span::styled(percent(m.hit_ratio), BOLD),
                Span::styled(format!(" ({} in all)", percent(m.hit_ratio_total)), DIM),
            ]
        }
        (None, Some((why, ms))) => {
            let text = format!("master unreachable for {} s: {why}", ms / 1000);
            vec![Span::styled(text, colour(Health::Bad))]
        }
        (None, None) => Vec::new(),
    };
    vec![Line::from(first), Line::from(second)]
}

fn heap_line(row: &RankRow) -> Line<'static> {
    let mut spans = vec![
        Span::raw(format!("{:>4} ", row.rank)),
        Span::styled(format!("{:<11} ", row.state), colour(row.health)),
    ];
    let Some(heap) = &row.heap else {
        spans.push(Span::styled("-", DIM));
        return Line::from(spans);
    };
    let used = heap.heap_used as f64 / heap.heap_total.max(1) as f64;
    let full = if used > 0.98 { colour(Health::Odd) } else { Style::new().fg(Color::Cyan) };
    let dash = || "-".to_string();
    spans.push(Span::styled(bar(used), full));
    spans.push(Span::raw(format!(
        " {:>3.0}% {:>8} {:>8} {:>8} {:>8} {:>7} {:>6}",
        used * 100.0,
        bytes(heap.heap_total as f64),
        bytes(heap.live_bytes as f64),
        bytes(heap.held_bytes as f64),
        row.hole.map_or_else(dash, |b| bytes(b as f64)),
        number(heap.objects as f64),
        row.heard_ms.map_or_else(dash, heard),
    )));
    Line::from(spans)
}

fn has_ssd(screen: &Screen) -> bool {
    screen.ranks.iter().any(|row| row.ssd.is_some())
}

fn ssd_line(rank: u32, row: Option<&SsdRow>) -> Line<'static> {
    let Some(row) = row else {
        return Line::from(vec![Span::raw(format!("{rank:>4} ")), Span::styled("-", DIM)]);
    };
    let f = &row.figures;
    let used = f.ssd_used_bytes as f64 / f.ssd_capacity_bytes.max(1) as f64;
    let rate = |rate: Option<f64>| rate.map_or("-".to_string(), number);
    let lost = if row.lost() > 0 { colour(Health::Odd) } else { Style::new() };
    Line::from(vec![
        Span::raw(format!("{rank:>4} ")),
        Span::styled(bar(used), Style::new().fg(Color::Cyan)),
        Span::raw(format!(
            " {:>3.0}% {:>9} {:>7} {:>8} {:>10} {:>8}",
            used * 100.0,
            bytes(f.ssd_capacity_bytes as f64),
            number(f.ssd_objects as f64),
            rate(row.saved_per_s),
            rate(row.promoted_per_s),
            number((f.kv_demote_pending + f.kv_promote_pending) as f64),
        )),
        Span::styled(format!(" {:>8}", number(row.lost() as f64)), lost),
    ])
}

/// `more`: what comes behind the rates.
fn traffic_line(name: &str, rates: Option<&Rates>, more: &str) -> Line<'static> {
    let Some(r) = rates else {
        let none = format!("{:>8}{:40}{more}", "-", "").trim_end().to_string();
        return Line::from(vec![Span::raw(format!("{name:>4} ")), Span::styled(none, DIM)]);
    };
    let text = format!(
        "{name:>4} {:>8} {:>10} {:>8} {:>10} {:>8}{more}",
        number(r.gets),
        bytes(r.bytes_read),
        number(r.puts),
        bytes(r.bytes_written),
        number(r.evictions)
    );
    Line::styled(text, if name == "all" { BOLD } else { Style::new() })
}

/// Names of the actors, in the order of the ranks that have most of them.
fn actor_titles(rows: &[RankRow]) -> String {
    let most = rows.iter().max_by_key(|r| (r.actors.len(), std::cmp::Reverse(r.rank)));
    let names = most.map(|r| r.actors.as_slice()).unwrap_or_default();
    if names.is_empty() {
        return "RANK ACTORS".to_string();
    }
    let title = |a: &ActorRow| format!("{:<ACTOR$}", a.name.to_uppercase());
    "RANK ".to_string() + &names.iter().map(title).collect::<String>()
}

fn actors_line(row: &RankRow) -> Line<'static> {
    let mut spans = vec![Span::raw(format!("{:>4} ", row.rank))];
    for actor in &row.actors {
        let word = if actor.health == Health::Bad {
            actor.state.to_uppercase()
        } else {
            actor.state.clone()
        };
        let text = format!("{word} q {} r {}", number(actor.queue as f64), actor.restarts);
        spans.push(Span::styled(format!("{text:<ACTOR$}"), colour(actor.health)));
    }
    match &row.silent {
        Some(why) => spans.push(Span::styled(format!("silent: {why}"), colour(Health::Odd))),
        None if row.actors.is_empty() => spans.push(Span::styled("-", DIM)),
        None => {}
    }
    Line::from(spans)
}

fn troubles(screen: &Screen) -> Vec<Line<'static>> {
    let of_rank = |row: &RankRow| {
        let rank = row.rank;
        let line = move |actor: &ActorRow| {
            let what = actor.fault.as_ref()?;
            let text = format!("rank {rank} {}: {what}", actor.name);
            Some(Line::styled(text, colour(actor.health)))
        };
        row.actors.iter().filter_map(line).collect::<Vec<_>>()
    };
    let missing = screen.master.as_ref().map_or(0, |m| m.replicas_missing);
    let text = format!("{missing} objects have fewer replicas than they should");
    let missing = (missing > 0).then(|| Line::styled(text, colour(Health::Odd)));
    screen.ranks.iter().flat_map(of_rank).chain(missing).collect()
}

fn curve(frame: &mut Frame<'_>, screen: &Screen, area: Rect) {
    if area.height <= *CURVE_ROWS.start() || screen.history.is_empty() {
        return;
    }
    let height = (area.height - 1).min(*CURVE_ROWS.end());
    let rows = Rect { y: area.y + 1, height, ..area };
    let [name, bars] = Layout::vertical([Constraint::Length(1), Constraint::Min(1)]).areas(rows);
    let width = usize::from(bars.width);
    let shown = &screen.history[screen.history.len().saturating_sub(width)..];
    let most = shown.iter().copied().max().unwrap_or(0);
    let text =
        format!("read and written per second, all ranks; highest shown {}", bytes(most as f64));
    frame.render_widget(Paragraph::new(Line::styled(text, DIM)), name);
    let style = Style::new().fg(Color::Cyan);
    frame.render_widget(
        Sparkline::default().data(shown.iter().copied()).max(most.max(1)).style(style),
        bars,
    );
}

fn footer(screen: &Screen, first: usize, shown: usize, every: &str) -> Line<'static> {
    let mut text = format!("q quits   every {every}");
    if shown < screen.ranks.len() {
        let last = screen.ranks[first + shown - 1].rank;
        text +=
            &format!("   ranks {first} to {last} of {}: arrows, PgUp, PgDn", screen.ranks.len());
    }
    Line::styled(text, DIM)
}

fn title(text: &str) -> Line<'static> {
    Line::styled(text.to_string(), BOLD.fg(Color::Blue))
}

fn colour(health: Health) -> Style {
    match health {
        Health::Good => Style::new().fg(Color::Green),
        Health::Odd => Style::new().fg(Color::Yellow),
        Health::Bad => BOLD.fg(Color::Red),
    }
}

fn bar(part: f64) -> String {
    let full = ((part * BAR as f64).round() as usize).min(BAR);
    "█".repeat(full) + &"░".repeat(BAR - full)
}

fn percent(ratio: Option<f64>) -> String {
    ratio.map_or("-".to_string(), |r| format!("{:.1}%", r * 100.0))
}

fn heard(ms: u64) -> String {
    if ms < 1_000 { format!("{ms} ms") } else { format!("{} s", ms / 1_000) }
}

/// Three digits or four and a letter.
fn number(value: f64) -> String {
    scaled(value, 1000.0, ["", "k", "M", "G", "T"])
}

/// The same with powers of 1024.
fn bytes(value: f64) -> String {
    scaled(value, 1024.0, [" B", " KiB", " MiB", " GiB", " TiB"])
}

fn scaled(mut value: f64, base: f64, units: [&str; 5]) -> String {
    let mut unit = 0;
    // A value that would round to the base itself is shown in the next unit.
    while value >= base - 0.5 && unit + 1 < units.len() {
        value /= base;
        unit += 1;
    }
    let digits = usize::from(unit > 0 && value < 99.95);
    format!("{value:.digits$}{}", units[unit])
}

#[cfg(test)]
mod tests;
