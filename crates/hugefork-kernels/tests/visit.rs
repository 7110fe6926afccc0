//! The guarantees of `visit` for every order: each byte once, whole subpages, the window or the
//! target last.

use hugefork_kernels::{GIGANTIC, Order, RESCHEDULE_EVERY, Reach, SUBPAGE, Side, Span, Target, Window, visit};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

fn spans(order: Order, len: usize, target: Target, window: usize) -> Vec<Span> {
    let mut spans = Vec::new();
    visit(order, len, target, Window::around(window), |span| spans.push(span));
    spans
}

/// Start and length in KiB, and whether the span is far: a short form for expected values.
fn drawn(order: Order, len: usize, target: Target, window: usize) -> Vec<(usize, usize, bool)> {
    let spans = spans(order, len, target, window);
    let draw = |span: Span| (span.start / KIB, span.len / KIB, span.reach == Reach::Far);
    spans.into_iter().map(draw).collect()
}

fn targets(len: usize) -> Vec<Target> {
    let steps = [0, 1, SUBPAGE - 1, SUBPAGE, 3 * SUBPAGE + 5, len / 3, len / 2 - 1, len / 2, len - SUBPAGE, len - 1];
    let at = steps.into_iter().filter(|offset| *offset < len);
    at.map(Target::At).chain([Target::Unknown]).collect()
}

fn target_offset(target: Target) -> usize {
    match target {
        Target::At(offset) => offset,
        Target::Unknown => 0,
    }
}

/// Calls `check` for every order with a sweep of lengths, targets and windows.
fn sweep(mut check: impl FnMut(Order, usize, Target, usize, &[Span])) {
    let lens = [4 * KIB, 8 * KIB, 12 * KIB, 64 * KIB, 132 * KIB, 2 * MIB, GIGANTIC, GIGANTIC + 4 * KIB, 9 * MIB];
    let windows = [0, 1, 4 * KIB, 8 * KIB, 12 * KIB, 128 * KIB, 256 * KIB, 2 * MIB, 64 * MIB, usize::MAX];
    for order in Order::ALL {
        for len in lens {
            for target in targets(len) {
                for window in windows {
                    check(*order, len, target, window, &spans(*order, len, target, window));
                }
            }
        }
    }
}

#[test]
fn every_byte_exactly_once_in_whole_subpages() {
    sweep(|order, len, target, window, spans| {
        let mut sorted = spans.to_vec();
        sorted.sort_by_key(|span| span.start);
        let mut end = 0;
        for span in &sorted {
            assert_eq!(span.start, end, "{order} {len} {target:?} {window}: gap or overlap");
            assert!(span.len > 0 && span.start % SUBPAGE == 0 && span.len % SUBPAGE == 0);
            end += span.len;
        }
        assert_eq!(end, len, "{order} {target:?} {window}");
    });
}

#[test]
fn far_before_near_and_the_target_in_the_last_span() {
    sweep(|order, len, target, window, spans| {
        let what = format!("{order} {len} {target:?} {window}: {spans:?}");
        let far = spans.iter().take_while(|span| span.reach == Reach::Far).count();
        assert!(spans[far..].iter().all(|span| span.reach == Reach::Near), "{what}");
        if len > GIGANTIC || (order == Order::Hybrid && window == 0) {
            assert_eq!(far, spans.len(), "nothing is near, {what}");
            return;
        }
        let last = spans.last().unwrap();
        let target = target_offset(target);
        assert!((last.start..last.start + last.len).contains(&target), "{what}");
    });
}

#[test]
fn each_order_has_its_shape() {
    sweep(|order, len, target, window, spans| {
        let what = format!("{order} {len} {target:?} {window}: {spans:?}");
        let near = spans.iter().filter(|span| span.reach == Reach::Near);
        match order {
            _ if len > GIGANTIC => {
                assert!(spans.is_sorted_by_key(|span| span.start), "{what}");
                assert!(spans.iter().all(|span| span.len <= RESCHEDULE_EVERY), "{what}");
                assert_eq!(spans.len(), len.div_ceil(RESCHEDULE_EVERY), "{what}");
            }
            Order::Straight => assert_eq!(spans.len(), 1, "{what}"),
            Order::TargetLast => {
                let page = |span: &Span| span.len == SUBPAGE && span.reach == Reach::Near;
                assert!(spans.iter().all(page), "{what}");
            }
            Order::NeighbourhoodLast => {
                let near = near.map(|span| span.len).sum::<usize>();
                assert!(near <= 5 * SUBPAGE && near >= len.min(3 * SUBPAGE), "{what}");
            }
            Order::Hybrid => {
                let near = near.map(|span| span.len).sum::<usize>();
                let expected = window.min(len).next_multiple_of(SUBPAGE);
                assert_eq!(near, expected, "{what}");
                assert!(spans.len() <= 3, "{what}");
            }
            other => panic!("{other} has no test"),
        }
    });
}

#[test]
fn hybrid_centres_its_window_on_the_target() {
    let len = 2 * MIB;
    for window in [1, 2, 3, 4, 5, 32, 33, 511, 512].map(|pages| pages * SUBPAGE) {
        for offset in (0..len).step_by(1000) {
            let spans = spans(Order::Hybrid, len, Target::At(offset), window);
            let near = spans.last().unwrap();
            let end = near.start + near.len;
            let page = offset - offset % SUBPAGE;
            let (left, right) = (page - near.start, end - page - SUBPAGE);
            let what = format!("{window} {offset}: {near:?}");
            assert_eq!(near.len, window, "moved inside the block, not cut, {what}");
            // With an even number of subpages the left side has one more; at an end of the block one side may be empty.
            let centred = left == right || left == right + SUBPAGE;
            let moved_right = near.start == 0 && left < right;
            let moved_left = end == len && left > right;
            assert!(centred || moved_right || moved_left, "{what}");
        }
    }
}

#[test]
fn hybrid_matches_the_drawing() {
    let hybrid = |len, target, window| drawn(Order::Hybrid, len, target, window);
    let at = |kib: usize| Target::At(kib * KIB + 123);
    assert_eq!(hybrid(MIB, at(512), 128 * KIB), [(0, 448, true), (576, 448, true), (448, 128, false)]);
    assert_eq!(hybrid(MIB, at(0), 128 * KIB), [(128, 896, true), (0, 128, false)]);
    assert_eq!(hybrid(MIB, at(1023), 128 * KIB), [(0, 896, true), (896, 128, false)]);
    assert_eq!(hybrid(MIB, Target::Unknown, 128 * KIB), [(128, 896, true), (0, 128, false)]);
    // The block is at most as large as the window, so all of it is near.
    assert_eq!(hybrid(128 * KIB, at(64), 128 * KIB), [(0, 128, false)]);
    assert_eq!(hybrid(4 * KIB, at(0), 128 * KIB), [(0, 4, false)]);
}

/// Start and length in KiB of the window in a block of 1 MiB; also checks that the spans cover every byte.
fn window(side: Side, kib: usize, target_kib: usize) -> (usize, usize) {
    let mut spans = Vec::new();
    let window = Window { bytes: kib * KIB, side };
    visit(Order::Hybrid, MIB, Target::At(target_kib * KIB + 123), window, |span| spans.push(span));
    assert_eq!(spans.iter().map(|span| span.len).sum::<usize>(), MIB);
    let near = spans.pop().unwrap();
    assert_eq!(near.reach, Reach::Near);
    assert!(spans.iter().all(|span| span.reach == Reach::Far));
    (near.start / KIB, near.len / KIB)
}

#[test]
fn a_window_lies_on_the_side_that_is_asked_for() {
    assert_eq!(window(Side::Around, 128, 512), (448, 128));
    assert_eq!(window(Side::After, 128, 512), (512, 128));
    assert_eq!(window(Side::Before, 128, 512), (388, 128));
    // A window of one subpage is the target's subpage on every side, and the target is always inside the window.
    for side in [Side::Around, Side::After, Side::Before] {
        assert_eq!(window(side, 4, 512), (512, 4), "{side:?}");
        for target in 0..1024 {
            let (start, len) = window(side, 64, target);
            assert_eq!(len, 64, "moved, not cut");
            assert!((start..start + len).contains(&target), "{side:?} {target}: {start}");
        }
    }
}

#[test]
fn a_window_is_moved_at_the_ends_of_the_block() {
    assert_eq!(window(Side::After, 128, 0), (0, 128));
    assert_eq!(window(Side::After, 128, 896), (896, 128));
    assert_eq!(window(Side::After, 128, 900), (896, 128));
    assert_eq!(window(Side::After, 128, 1023), (896, 128));
    assert_eq!(window(Side::Before, 128, 0), (0, 128));
    assert_eq!(window(Side::Before, 128, 124), (0, 128));
    assert_eq!(window(Side::Before, 128, 128), (4, 128));
    assert_eq!(window(Side::Before, 128, 1023), (896, 128));
    for side in [Side::Around, Side::After, Side::Before] {
        assert_eq!(window(side, 4096, 512), (0, 1024), "{side:?}");
    }
}

#[test]
fn neighbourhood_last_matches_the_drawing() {
    let around = |page: usize| drawn(Order::NeighbourhoodLast, 64 * KIB, Target::At(page * SUBPAGE + 9), 0);
    assert_eq!(around(8), [(44, 20, true), (0, 24, true), (24, 20, false)]);
    assert_eq!(around(0), [(12, 52, true), (0, 12, false)]);
    assert_eq!(around(1), [(16, 48, true), (0, 16, false)]);
    assert_eq!(around(15), [(0, 52, true), (52, 12, false)]);
}

#[test]
fn unknown_targets_are_subpage_0_and_outside_ones_the_last() {
    for order in Order::ALL {
        let with = |target| spans(*order, 2 * MIB, target, 64 * KIB);
        assert_eq!(with(Target::Unknown), with(Target::At(0)), "{order}");
        assert_eq!(with(Target::At(usize::MAX)), with(Target::At(2 * MIB - 1)), "{order}");
    }
}

#[test]
fn gigantic_starts_above_4_mib() {
    for order in Order::ALL {
        let spans = spans(*order, GIGANTIC, Target::At(5), 64 * KIB);
        assert_eq!(spans.last().unwrap().reach, Reach::Near, "{order}");
    }
    let expected = [(0, 2048, true), (2048, 2048, true), (4096, 4, true)];
    for order in Order::ALL {
        assert_eq!(drawn(*order, GIGANTIC + SUBPAGE, Target::At(5), 64 * KIB), expected, "{order}");
    }
}

#[test]
fn an_empty_block_has_no_spans() {
    for order in Order::ALL {
        assert_eq!(spans(*order, 0, Target::At(7), 64 * KIB), []);
    }
}
