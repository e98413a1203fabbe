//! The live view: takes the terminal, draws, listens to keys, and gives the terminal back as it
//! was, whatever ends the view: a key, a signal, or the end of the terminal itself. The cluster is
//! asked by another thread, so keys answer at once even while a rank does not; keys are read by a
//! third, since a blocked read of keys does not return when the terminal is gone.

use super::collect::{Collector, Sample};
use super::draw::draw;
use super::model::{Model, Screen};
use crate::cli_error::CliError;
use crate::signals::Signals;
use nkv_store::clock::{BootClock, Clock};
use nkv_store::threads::spawn_named;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::terminal::disable_raw_mode;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::runtime::Runtime;

/// Longest wait for a key before the loop checks for a new sample.
const TICK: Duration = Duration::from_millis(100);
/// Ranks that a page key moves by.
const PAGE: usize = 10;
/// Keys that were read and not handled yet.
const MAX_KEYS: usize = 64;
/// How long after a signal the view may take to end by itself: writing to a blocked terminal may
/// not return.
const GRACE: Duration = Duration::from_secs(2);

/// What the two threads share.
#[derive(Debug, Default)]
struct Shared {
    /// The latest sample, until it is drawn.
    latest: Mutex<Option<Sample>>,
    /// A signal asked the program to end.
    ended: AtomicBool,
}

/// Restores the terminal when dropped.
struct TerminalGuard(ManuallyDrop<DefaultTerminal>);

impl TerminalGuard {
    fn take() -> io::Result<Self> {
        // `try_init` also installs a panic hook that restores the terminal before the message.
        ratatui::try_init().map(|terminal| Self(ManuallyDrop::new(terminal)))
    }
}

impl Drop for TerminalGuard {
    fn drop(&mut self) {
        // If the terminal is gone both calls fail. The terminal's own Drop would print that error
        // and panic, so it is not run.
        let _ = self.0.show_cursor();
        let _ = ratatui::try_restore();
    }
}

/// What a key asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeyAction {
    Quit,
    /// Show the ranks from here on.
    From(usize),
}

/// Shows the cluster until a key, a signal or the end of the terminal ends it.
pub(super) fn show(
    runtime: Runtime,
    collector: Collector,
    mut model: Model,
    interval: Duration,
) -> Result<(), CliError> {
    let shared = Arc::new(Shared::default());
    let theirs = shared.clone();
    // Before the terminal is taken: a signal after that must not end the program without restoring
    // it.
    let signals = {
        let _guard = runtime.enter();
        Signals::new().map_err(|e| CliError::io("signals", e))?
    };
    // The threads end with the process: they hold nothing that needs a clean close.
    let thread = |e: std::io::Error| CliError::io("a thread", e);
    spawn_named("nkv-top", move || {
        runtime.block_on(ask(collector, signals, &theirs, interval));
    })
    .map_err(|e| thread(io::Error::other(e.to_string())))?;
    let mut terminal = TerminalGuard::take().map_err(|e| CliError::io("the terminal", e))?;
    let keys = read_keys().map_err(thread)?;
    let every = format!("{} s", interval.as_secs_f64());
    let failed = |e| CliError::io("the terminal", e);
    let (mut screen, mut scroll, mut stale) = (None::<Screen>, 0, false);
    while !shared.ended.load(Ordering::Acquire) && !is_gone() {
        let latest = shared.latest.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(sample) = latest {
            screen = Some(model.update(sample));
            stale = true;
        }
        if let (Some(screen), true) = (&screen, stale) {
            let draws =
                |frame: &mut ratatui::Frame<'_>| scroll = draw(frame, screen, scroll, &every);
            match terminal.0.draw(draws) {
                Ok(_) => stale = false,
                Err(_) if is_gone() => return Ok(()),
                Err(e) => return Err(failed(e)),
            }
        }
        match keys.recv_timeout(TICK) {
            Ok(Event::Key(key)) => match key_action(key, scroll) {
                Some(KeyAction::Quit) => return Ok(()),
                Some(KeyAction::From(rank)) => (scroll, stale) = (rank, true),
                None => {}
            },
            Ok(Event::Resize(..)) => stale = true,
            Ok(_) | Err(RecvTimeoutError::Timeout) => {}
            // Without keys the user could not end it.
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
    Ok(())
}

/// Starts the thread that reads keys. The library that reads them never returns once the terminal
/// is gone; that thread then ends with the process.
fn read_keys() -> io::Result<Receiver<Event>> {
    let (tx, rx) = sync_channel(MAX_KEYS);
    spawn_named("nkv-top-keys", move || {
        while let Ok(event) = event::read() {
            if tx.send(event).is_err() {
                return;
            }
        }
    })
    .map_err(|e| io::Error::other(e.to_string()))?;
    Ok(rx)
}

/// True once the other end of the terminal is closed.
fn is_gone() -> bool {
    let stdin = io::stdin();
    // HUP, ERR and NVAL are reported without being requested.
    let mut asked = [PollFd::new(&stdin, PollFlags::empty())];
    let polled = poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    let ended = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
    polled.is_ok() && asked[0].revents().intersects(ended)
}

/// Samples the cluster at every interval; a sample that takes longer is followed by the next at
/// once.
async fn ask(mut collector: Collector, signals: Signals, shared: &Shared, interval: Duration) {
    let samples = async {
        loop {
            let begun_ns = BootClock.now_ns();
            let sample = collector.sample().await;
            *shared.latest.lock().unwrap_or_else(PoisonError::into_inner) = Some(sample);
            let took = Duration::from_nanos(BootClock.now_ns().saturating_sub(begun_ns));
            tokio::time::sleep(interval.saturating_sub(took)).await;
        }
    };
    tokio::select! {
        () = samples => {}
        _ = signals.any() => {}
    }
    shared.ended.store(true, Ordering::Release);
    tokio::time::sleep(GRACE).await;
    // The process still runs: the terminal takes no output, so the screen cannot be cleared. Its
    // mode can still be restored.
    let _ = disable_raw_mode();
    std::process::exit(0);
}

fn key_action(key: KeyEvent, scroll: usize) -> Option<KeyAction> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
            Some(KeyAction::Quit)
        }
        KeyCode::Char('q' | 'Q') | KeyCode::Esc => Some(KeyAction::Quit),
        KeyCode::Down | KeyCode::Char('j') => Some(KeyAction::From(scroll.saturating_add(1))),
        KeyCode::Up | KeyCode::Char('k') => Some(KeyAction::From(scroll.saturating_sub(1))),
        KeyCode::PageDown => Some(KeyAction::From(scroll.saturating_add(PAGE))),
        KeyCode::PageUp => Some(KeyAction::From(scroll.saturating_sub(PAGE))),
        KeyCode::Home => Some(KeyAction::From(0)),
        KeyCode::End => Some(KeyAction::From(usize::MAX)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{KeyAction, PAGE, key_action};
    use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

    #[test]
    fn keys_quit_or_scroll_and_others_do_nothing() {
        let key = |code| KeyEvent::new(code, KeyModifiers::NONE);
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        for quits in [key(KeyCode::Char('q')), key(KeyCode::Esc), control_c] {
            assert_eq!(key_action(quits, 3), Some(KeyAction::Quit));
        }
        assert_eq!(key_action(key(KeyCode::Char('c')), 3), None);
        assert_eq!(key_action(key(KeyCode::Up), 0), Some(KeyAction::From(0)));
        assert_eq!(key_action(key(KeyCode::PageDown), 3), Some(KeyAction::From(3 + PAGE)));
        assert_eq!(key_action(key(KeyCode::End), 3), Some(KeyAction::From(usize::MAX)));
        let released = KeyEvent { kind: KeyEventKind::Release, ..key(KeyCode::Char('q')) };
        assert_eq!(key_action(released, 3), None);
    }
}
