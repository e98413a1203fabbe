//! Screens as drawn on a terminal of 80 columns and 24 rows, and on others.

use super::super::model::tests::{headless, sample, without};
use super::super::model::{Model, RankRow, Screen, SsdRow};
use super::{draw, plain};
use nkv_actors::tier::TierFigures;
use ratatui::Terminal;
use ratatui::backend::TestBackend;

fn after(samples: Vec<super::super::collect::Sample>) -> Screen {
    let mut model = Model::new("chat".to_string());
    samples.into_iter().map(|sample| model.update(sample)).last().unwrap()
}

/// The rows of a terminal of this size.
fn rows(screen: &Screen, (width, height): (u16, u16), scroll: usize) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| _ = draw(frame, screen, scroll, "1 s")).unwrap();
    let buffer = terminal.backend().buffer();
    let row = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..height).map(|y| row(y).trim_end().to_string()).collect()
}

/// A screen with many ranks like the first.
fn large(ranks: u32) -> Screen {
    let mut screen = after(vec![sample(0), sample(1)]);
    let like = screen.ranks[0].clone();
    screen.ranks = (0..ranks).map(|rank| RankRow { rank, ..like.clone() }).collect();
    screen.world_size = ranks;
    screen
}

#[test]
fn three_ranks_fit_on_80_by_24_with_their_curve() {
    let rows = rows(&after(vec![sample(0), sample(1)]), (80, 24), 0);
    let expected = [
        "nkv top   job chat   3 of 3 ranks   master rank 0, term 5   hash",
        "objects 9000   plans 0   waiting 0   lookups 300/s   hit 66.7% (66.7% in all)",
        "",
        "RANK STATE       HEAP USED         OF     LIVE     HELD     HOLE OBJECTS  HEARD",
        "   0 alive       ██░░░░░  25% 64.0 MiB 12.0 MiB  4.0 MiB 30.0 MiB    3.0k  12 ms",
        "   1 alive       ██░░░░░  25% 64.0 MiB 12.0 MiB  4.0 MiB 30.0 MiB    3.0k  12 ms",
        "   2 alive       ██░░░░░  25% 64.0 MiB 12.0 MiB  4.0 MiB 30.0 MiB    3.0k  12 ms",
        "",
        "RANK   GETS/s   READ B/s   PUTS/s  WRITE B/s  EVICT/s",
        "   0      100    400 KiB       50    200 KiB        0",
        "   1      100    400 KiB       50    200 KiB        0",
        "   2      100    400 KiB       50    200 KiB        0",
        " all      300    1.2 MiB      150    600 KiB        0",
        "",
        "RANK OWNER             EVICTOR",
        "   0 running q 0 r 0   running q 0 r 0",
        "   1 running q 0 r 0   running q 0 r 0",
        "   2 running q 0 r 0   running q 0 r 0",
        "",
        "read and written per second, all ranks; highest shown 1.8 MiB",
    ];
    assert_eq!(rows[..expected.len()], expected);
    assert!(rows[20..23].iter().all(|row| row == "█"), "{rows:#?}");
    assert_eq!(rows[23], "q quits   every 1 s");
}

#[test]
fn a_dead_rank_and_a_dead_master_are_shown_in_their_rows() {
    let screen = after(vec![sample(0), without(1, true, sample(1))]);
    let gone = rows(&screen, (80, 24), 0);
    assert_eq!(gone[0], "nkv top   job chat   2 of 3 ranks   master rank 0, term 5   hash");
    assert_eq!(gone[5], "   1 gone        -");
    let lost = rows(&after(vec![sample(0), headless(sample(4))]), (80, 24), 0);
    assert_eq!(lost[1], "master unreachable for 4 s: Disconnected: refused");
    assert_eq!(lost[4], "   0 unreachable -");
    assert_eq!(lost[15], "   0 silent: Connection refused");
    assert!(lost[9].trim_end().ends_with('-') && lost[10].contains("100"), "{lost:#?}");
}

#[test]
fn more_ranks_than_rows_are_scrolled_and_the_foot_says_so() {
    let screen = large(40);
    let shown = rows(&screen, (80, 24), 0);
    assert!(shown[4].starts_with("   0 ") && shown[7].starts_with("   3 "), "{shown:#?}");
    assert!(shown[23].contains("ranks 0 to 3 of 40"), "{}", shown[23]);
    let end = rows(&screen, (80, 24), usize::MAX);
    assert!(end[4].starts_with("  36 ") && end[23].contains("36 to 39 of 40"), "{end:#?}");
}

#[test]
fn what_is_wrong_with_an_actor_stands_below_the_tables() {
    let mut sick = sample(1);
    for page in sick.nodes.values_mut().flatten() {
        page.actors[0].state = "frozen".to_string();
        page.actors[0].frozen_in = Some("Touches".to_string());
    }
    let screen = after(vec![sample(0), sick]);
    let shown = rows(&screen, (80, 24), 0);
    assert_eq!(shown[15], "   0 FROZEN q 0 r 0    running q 0 r 0");
    assert_eq!(shown[18], "rank 0 owner: frozen in Touches");
    assert!(plain(&screen).contains("rank 2 owner: frozen in Touches\n"));
    let mut short = after(vec![sample(0), sample(1)]);
    short.master.as_mut().unwrap().replicas_missing = 4;
    assert!(plain(&short).ends_with("\n4 objects have fewer replicas than they should\n"));
}

#[test]
fn any_size_of_terminal_and_cluster_can_be_drawn() {
    for size in [(1, 1), (20, 5), (80, 12), (80, 24), (200, 60)] {
        for screen in [large(0), large(1), large(40), after(vec![headless(sample(0))])] {
            let drawn = rows(&screen, size, 7);
            assert_eq!(drawn.len(), usize::from(size.1));
        }
    }
    let wide = rows(&large(3), (120, 50), 0);
    assert_eq!(wide[49], "q quits   every 1 s");
}

#[test]
fn plain_text_has_every_rank_and_no_control_characters() {
    let text = plain(&large(40));
    assert_eq!(text.lines().filter(|line| line.contains(" alive ")).count(), 40);
    assert!(!text.chars().any(|c| c.is_control() && c != '\n'));
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

#[test]
fn device_logs_have_columns_where_a_rank_has_one() {
    let mut screen = after(vec![sample(0), sample(1)]);
    let heap = screen.ranks[1].heap.as_mut().unwrap();
    (heap.log_total, heap.log_live_bytes) = (64 << 20, 3 << 20);
    let drawn = rows(&screen, (80, 24), 0);
    let expected = [
        "RANK   GETS/s   READ B/s   PUTS/s  WRITE B/s  EVICT/s  LOG LIVE        OF",
        "   0      100    400 KiB       50    200 KiB        0       0 B       0 B",
        "   1      100    400 KiB       50    200 KiB        0   3.0 MiB  64.0 MiB",
    ];
    assert_eq!(drawn[8..11], expected);
    // Before there are rates, too.
    screen.ranks[1].rates = None;
    let first = &super::lines(&screen, 0..3)[10];
    let text: String = first.spans.iter().map(|s| s.content.as_ref()).collect();
    assert_eq!(text.len(), expected[0].len(), "{text:?}");
    assert!(text.ends_with("  3.0 MiB  64.0 MiB"), "{text:?}");
}

#[test]
fn ranks_with_an_ssd_tier_have_a_table_of_it() {
    let figures = TierFigures {
        ssd_objects: 5000,
        ssd_used_bytes: 1 << 30,
        ssd_capacity_bytes: 4 << 30,
        kv_demote_pending: 7,
        kv_demote_dropped: 2,
        ..TierFigures::default()
    };
    let mut screen = after(vec![sample(0), sample(1)]);
    let (saved_per_s, promoted_per_s) = (Some(120.0), None);
    screen.ranks[1].ssd = Some(SsdRow { saved_per_s, promoted_per_s, figures });
    let text = plain(&screen);
    let expected = "RANK SSD USED          OF OBJECTS  SAVED/s PROMOTED/s  PENDING     LOST
   0 -
   1 ██░░░░░  25%   4.0 GiB    5.0k      120          -        7        2
   2 -
";
    assert!(text.contains(expected), "{text}");
    assert_eq!(rows(&screen, (80, 30), 0)[22], "   2 running q 0 r 0   running q 0 r 0");
}
