//! The live view: takes the terminal, draws, listens to keys, and gives the terminal back as it was,
//! whatever ends the view. The cluster is asked by another thread, so keys answer at once even while
//! a rank does not.

use super::collect::{Collector, Look};
use super::draw::draw;
use super::model::{Model, Screen};
use crate::trouble::Trouble;
use nkv_store::clock::{BootClock, Clock};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

/// Longest wait for a key before there may be something new to draw.
const TICK: Duration = Duration::from_millis(100);
/// Ranks that a page key moves by.
const PAGE: usize = 10;

/// What the two threads share.
#[derive(Debug, Default)]
struct Shared {
    /// The latest look that was not drawn yet.
    latest: Mutex<Option<Look>>,
    /// A signal asked for the end.
    ended: AtomicBool,
}

/// Gives the terminal back when dropped.
struct Taken(DefaultTerminal);

impl Taken {
    fn take() -> std::io::Result<Self> {
        // Also gives it back before the message of a panic is written.
        ratatui::try_init().map(Self)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// What a key asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wish {
    Quit,
    /// Show the ranks from here on.
    From(usize),
}

/// Shows the cluster until a key or a signal ends it.
pub(super) fn show(
    runtime: Runtime,
    collector: Collector,
    mut model: Model,
    interval: Duration,
) -> Result<(), Trouble> {
    let shared = Arc::new(Shared::default());
    let theirs = shared.clone();
    // It ends with the process: nothing it holds needs a goodbye.
    nkv_store::threads::spawn_named("nkv-top", move || {
        runtime.block_on(ask(collector, &theirs, interval));
    })
    .map_err(|e| Trouble::io("a thread", std::io::Error::other(e.to_string())))?;
    let mut terminal = Taken::take().map_err(|e| Trouble::io("the terminal", e))?;
    let every = format!("{} s", interval.as_secs_f64());
    let failed = |e| Trouble::io("the terminal", e);
    let (mut screen, mut scroll, mut stale) = (None::<Screen>, 0, false);
    while !shared.ended.load(Ordering::Acquire) {
        let latest = shared.latest.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(look) = latest {
            screen = Some(model.update(look));
            stale = true;
        }
        if let (Some(screen), true) = (&screen, stale) {
            let draws =
                |frame: &mut ratatui::Frame<'_>| scroll = draw(frame, screen, scroll, &every);
            terminal.0.draw(draws).map_err(failed)?;
            stale = false;
        }
        if event::poll(TICK).map_err(failed)? {
            match event::read().map_err(failed)? {
                Event::Key(key) => match wish(key, scroll) {
                    Some(Wish::Quit) => return Ok(()),
                    Some(Wish::From(rank)) => (scroll, stale) = (rank, true),
                    None => {}
                },
                Event::Resize(..) => stale = true,
                _ => {}
            }
        }
    }
    Ok(())
}

/// Looks at the cluster at every interval; a look that takes longer is followed by the next at once.
async fn ask(mut collector: Collector, shared: &Shared, interval: Duration) {
    let looks = async {
        loop {
            let begun_ns = BootClock.now_ns();
            let look = collector.look().await;
            *shared.latest.lock().unwrap_or_else(PoisonError::into_inner) = Some(look);
            let took = Duration::from_nanos(BootClock.now_ns().saturating_sub(begun_ns));
            tokio::time::sleep(interval.saturating_sub(took)).await;
        }
    };
    tokio::select! {
        () = looks => {}
        () = signalled() => shared.ended.store(true, Ordering::Release),
    }
}

/// Waits for a signal that asks the program to end.
async fn signalled() {
    let kinds = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];
    let [Ok(mut terminate), Ok(mut interrupt), Ok(mut hangup)] = kinds.map(signal) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        _ = hangup.recv() => {}
    }
}

fn wish(key: KeyEvent, scroll: usize) -> Option<Wish> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Some(Wish::Quit),
        KeyCode::Char('q' | 'Q') | KeyCode::Esc => Some(Wish::Quit),
        KeyCode::Down | KeyCode::Char('j') => Some(Wish::From(scroll.saturating_add(1))),
        KeyCode::Up | KeyCode::Char('k') => Some(Wish::From(scroll.saturating_sub(1))),
        KeyCode::PageDown => Some(Wish::From(scroll.saturating_add(PAGE))),
        KeyCode::PageUp => Some(Wish::From(scroll.saturating_sub(PAGE))),
        KeyCode::Home => Some(Wish::From(0)),
        KeyCode::End => Some(Wish::From(usize::MAX)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{PAGE, Wish, wish};
    use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

    #[test]
    fn keys_quit_or_scroll_and_others_do_nothing() {
        let key = |code| KeyEvent::new(code, KeyModifiers::NONE);
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        for quits in [key(KeyCode::Char('q')), key(KeyCode::Esc), control_c] {
            assert_eq!(wish(quits, 3), Some(Wish::Quit));
        }
        assert_eq!(wish(key(KeyCode::Char('c')), 3), None);
        assert_eq!(wish(key(KeyCode::Up), 0), Some(Wish::From(0)));
        assert_eq!(wish(key(KeyCode::PageDown), 3), Some(Wish::From(3 + PAGE)));
        assert_eq!(wish(key(KeyCode::End), 3), Some(Wish::From(usize::MAX)));
        let released = KeyEvent { kind: KeyEventKind::Release, ..key(KeyCode::Char('q')) };
        assert_eq!(wish(released, 3), None);
    }
}
