//! The target-last order against a second formulation, for every block of up to 512 subpages and every target in it.

use hugefork_kernels::{TargetLast, target_last};

/// Every `nr` and target that is checked.
fn cases() -> impl Iterator<Item = (usize, usize)> {
    (1..=512).flat_map(|nr| (0..nr).map(move |target| (nr, target)))
}

/// Writes the order into a list, leg by leg, as the design describes it.
fn written_out(nr: usize, n: usize, order: &mut Vec<usize>) {
    order.clear();
    if 2 * n <= nr {
        // First nr-1, nr-2, … 2n.
        let mut far = nr;
        while far > 2 * n {
            far -= 1;
            order.push(far);
        }
        // Then pairs (0, 2n-1), (1, 2n-2), … (n-1, n).
        let mut left = 0;
        while left < n {
            order.extend([left, 2 * n - 1 - left]);
            left += 1;
        }
    } else {
        let base = 2 * n - nr;
        let l = nr - n;
        // First 0, 1, … base-1.
        order.extend(0..base);
        // Then l pairs (base+i, base+2l-1-i).
        for i in 0..l {
            order.push(base + i);
            order.push(base + 2 * l - 1 - i);
        }
    }
}

#[test]
fn equals_the_order_written_out_leg_by_leg() {
    let mut expected = Vec::new();
    for (nr, target) in cases() {
        written_out(nr, target, &mut expected);
        let mut order = target_last(nr, target);
        for (position, index) in expected.iter().enumerate() {
            assert_eq!(order.next(), Some(*index), "nr {nr} target {target} position {position}");
        }
        assert_eq!(order.next(), None, "nr {nr} target {target}");
    }
}

#[test]
fn matches_the_drawn_order() {
    let order = |nr, target| target_last(nr, target).collect::<Vec<_>>();
    assert_eq!(order(1, 0), [0]);
    assert_eq!(order(2, 0), [1, 0]);
    assert_eq!(order(2, 1), [0, 1]);
    assert_eq!(order(8, 0), [7, 6, 5, 4, 3, 2, 1, 0]);
    assert_eq!(order(8, 3), [7, 6, 0, 5, 1, 4, 2, 3]);
    assert_eq!(order(8, 4), [0, 7, 1, 6, 2, 5, 3, 4]);
    assert_eq!(order(8, 5), [0, 1, 2, 7, 3, 6, 4, 5]);
    assert_eq!(order(8, 7), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(order(7, 3), [6, 0, 5, 1, 4, 2, 3]);
}

#[test]
fn visits_every_index_once_and_the_target_last() {
    for (nr, target) in cases() {
        let mut seen = [false; 512];
        let mut last = None;
        for index in target_last(nr, target) {
            assert!(index < nr && !seen[index], "nr {nr} target {target}: {index} twice or outside");
            seen[index] = true;
            last = Some(index);
        }
        assert!(seen[..nr].iter().all(|seen| *seen), "nr {nr} target {target}: incomplete");
        assert_eq!(last, Some(target), "nr {nr}");
    }
}

#[test]
fn approaches_the_target_from_both_sides() {
    let mut order = Vec::new();
    for (nr, target) in cases() {
        order.clear();
        order.extend(target_last(nr, target));
        // The length of the shorter side limits the pairs.
        let paired = 2 * target.min(nr - target);
        for (from_end, index) in order.iter().rev().take(paired).enumerate() {
            let distance = from_end.div_ceil(2);
            let expected = if from_end % 2 == 1 { target - distance } else { target + distance };
            assert_eq!(*index, expected, "nr {nr} target {target}, {from_end} before the end");
        }
        // Before that, the longer side approaches the target step by step.
        let lone = &order[..nr - paired];
        let distances = lone.iter().map(|index| index.abs_diff(target));
        assert!(distances.is_sorted_by(|a, b| a > b), "nr {nr} target {target}: {lone:?}");
    }
}

#[test]
fn reports_the_remaining_length() {
    for (nr, target) in [(1, 0), (2, 1), (7, 3), (8, 0), (511, 400), (512, 256)] {
        let mut order = target_last(nr, target);
        for left in (0..=nr).rev() {
            assert_eq!(order.size_hint(), (left, Some(left)));
            assert_eq!(order.len(), left);
            assert_eq!(order.next().is_some(), left > 0);
        }
        // The iterator is fused: it remains at its end.
        assert_eq!((order.next(), order.len()), (None, 0));
    }
}

#[test]
fn a_target_outside_the_block_counts_as_its_last_subpage() {
    assert!(target_last(8, 8).eq(target_last(8, 7)));
    assert!(target_last(8, usize::MAX).eq(target_last(8, 7)));
    assert_eq!(target_last(0, 0).count(), 0);
    assert_eq!(target_last(0, 5).count(), 0);
}

#[test]
fn the_state_is_four_words() {
    assert!(size_of::<TargetLast>() <= 4 * size_of::<usize>());
    // The walk allocates nothing, so the block may have any size.
    let mut order = target_last(usize::MAX, usize::MAX / 2 + 7);
    assert_eq!(order.next(), Some(0));
    assert_eq!(order.len(), usize::MAX - 1);
}
