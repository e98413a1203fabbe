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
use std::ops::ControlFlow;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;
use tokio::runtime::Runtime;

/// Longest wait for a key before the loop checks for a new sample.
const TICK: Duration = Duration::from_millis(100);
/// Ranks that a page key moves by.
const PAGE: usize = 10;
/// Events that are not handled yet.
const MAX_EVENTS: usize = 64;
/// How long after a signal the view may take to end by itself: writing to a blocked terminal may
/// not return.
const GRACE: Duration = Duration::from_secs(2);

/// What the other threads send to the one that draws.
enum TopEvent {
    Sample(Box<Sample>),
    Terminal(Event),
    /// A signal asked the program to end, or no more keys can be read.
    End,
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

/// Shows the cluster until a key, a signal or the end of the terminal ends it.
pub(super) fn show(
    runtime: Runtime,
    collector: Collector,
    mut model: Model,
    interval: Duration,
) -> Result<(), CliError> {
    let (keys, events) = sync_channel(MAX_EVENTS);
    let samples = keys.clone();
    // Before the terminal is taken: a signal after that must not end the program without restoring
    // it.
    let signals = {
        let _guard = runtime.enter();
        Signals::new().map_err(|e| CliError::io("signals", e))?
    };
    // The threads end with the process: they hold nothing that needs a clean close.
    let thread = |e| CliError::io("a thread", io::Error::other(e));
    spawn_named("nkv-top", move || runtime.block_on(ask(collector, signals, &samples, interval)))
        .map_err(thread)?;
    let mut terminal = TerminalGuard::take().map_err(|e| CliError::io("the terminal", e))?;
    spawn_named("nkv-top-keys", move || {
        // The library that reads keys never returns once the terminal is gone.
        while let Ok(event) = event::read() {
            let _ = keys.send(TopEvent::Terminal(event));
        }
        // Without keys the user could not end it.
        let _ = keys.send(TopEvent::End);
    })
    .map_err(thread)?;
    let every = format!("{} s", interval.as_secs_f64());
    let failed = |e| CliError::io("the terminal", e);
    let (mut screen, mut scroll, mut stale) = (None::<Screen>, 0, false);
    while !is_gone() {
        if let (Some(screen), true) = (&screen, stale) {
            let draws =
                |frame: &mut ratatui::Frame<'_>| scroll = draw(frame, screen, scroll, &every);
            match terminal.0.draw(draws) {
                Ok(_) => stale = false,
                Err(_) if is_gone() => return Ok(()),
                Err(e) => return Err(failed(e)),
            }
        }
        match events.recv_timeout(TICK) {
            Ok(TopEvent::Sample(sample)) => (screen, stale) = (Some(model.update(*sample)), true),
            Ok(TopEvent::Terminal(Event::Key(key))) => match key_action(key, scroll) {
                ControlFlow::Break(()) => return Ok(()),
                ControlFlow::Continue(rank) => {
                    stale |= rank != scroll;
                    scroll = rank;
                }
            },
            Ok(TopEvent::Terminal(Event::Resize(..))) => stale = true,
            Ok(TopEvent::Terminal(_)) | Err(RecvTimeoutError::Timeout) => {}
            Ok(TopEvent::End) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
    Ok(())
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
async fn ask(
    mut collector: Collector,
    signals: Signals,
    events: &SyncSender<TopEvent>,
    interval: Duration,
) {
    let samples = async {
        loop {
            let begun_ns = BootClock.now_ns();
            let sample = Box::new(collector.sample().await);
            // Nobody draws while the terminal is blocked: then the sample is dropped.
            let _ = events.try_send(TopEvent::Sample(sample));
            let took = Duration::from_nanos(BootClock.now_ns().saturating_sub(begun_ns));
            tokio::time::sleep(interval.saturating_sub(took)).await;
        }
    };
    tokio::select! {
        () = samples => {}
        _ = signals.any() => {}
    }
    // Again and again, since the channel is full while the terminal is blocked.
    for _ in 0..GRACE.as_millis() / TICK.as_millis() {
        let _ = events.try_send(TopEvent::End);
        tokio::time::sleep(TICK).await;
    }
    // The process still runs: the terminal takes no output, so the screen cannot be cleared. Its
    // mode can still be restored.
    let _ = disable_raw_mode();
    std::process::exit(0);
}

/// Whether the view goes on after a key, and with the ranks from which one on.
fn key_action(key: KeyEvent, scroll: usize) -> ControlFlow<(), usize> {
    if key.kind == KeyEventKind::Release {
        return ControlFlow::Continue(scroll);
    }
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    ControlFlow::Continue(match key.code {
        KeyCode::Char('c') if control => return ControlFlow::Break(()),
        KeyCode::Char('q' | 'Q') | KeyCode::Esc => return ControlFlow::Break(()),
        KeyCode::Down | KeyCode::Char('j') => scroll.saturating_add(1),
        KeyCode::Up | KeyCode::Char('k') => scroll.saturating_sub(1),
        KeyCode::PageDown => scroll.saturating_add(PAGE),
        KeyCode::PageUp => scroll.saturating_sub(PAGE),
        KeyCode::Home => 0,
        KeyCode::End => usize::MAX,
        _ => scroll,
    })
}

#[cfg(test)]
mod tests {
    use super::{PAGE, key_action};
    use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
    use std::ops::ControlFlow::{Break, Continue};

    #[test]
    fn keys_quit_or_scroll_and_others_do_nothing() {
        let key = |code| KeyEvent::new(code, KeyModifiers::NONE);
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        for quits in [key(KeyCode::Char('q')), key(KeyCode::Esc), control_c] {
            assert_eq!(key_action(quits, 3), Break(()));
        }
        assert_eq!(key_action(key(KeyCode::Char('c')), 3), Continue(3));
        assert_eq!(key_action(key(KeyCode::Up), 0), Continue(0));
        assert_eq!(key_action(key(KeyCode::PageDown), 3), Continue(3 + PAGE));
        assert_eq!(key_action(key(KeyCode::End), 3), Continue(usize::MAX));
        let released = KeyEvent { kind: KeyEventKind::Release, ..key(KeyCode::Char('q')) };
        assert_eq!(key_action(released, 3), Continue(3));
    }
}
