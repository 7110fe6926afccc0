//! The model walks through blocks exactly as the library does, and its replacement policies and
//! arguments work as described.

use hugefork_kernels::{
    Order, Primitive, Reach, SUBPAGE, Side, Target, Window, Work, every_kernel, target_last, visit,
};

#[path = "../examples/model/main.rs"]
mod model;

use model::{
    Failure, answer,
    cache::{Cache, Found, LEAD, Policy},
    machine::{Machine, run},
    workload::{Act, BLOCK, Plan, Step, life, resolve},
};

const SUBPAGES: usize = BLOCK / SUBPAGE;

/// Offsets at the block's ends and between, one of them in the middle of a subpage.
const TARGETS: [usize; 6] = [0, 5, BLOCK / 4, BLOCK / 2 + 777, BLOCK - SUBPAGE - 1, BLOCK - 1];

fn pieces(steps: &[Step]) -> Vec<usize> {
    steps.iter().map(|step| step.piece).collect()
}

fn is_past_cache(act: Act) -> bool {
    match act {
        Act::Clear { past_cache } | Act::Copy { past_cache } => past_cache,
        Act::Use => panic!("use is no part of a fault"),
    }
}

#[test]
fn each_kernel_of_the_library_is_followed_subpage_by_subpage() {
    for kernel in every_kernel() {
        for side in [Side::Around, Side::After, Side::Before] {
            let kernel = kernel.with_side(side);
            for target in TARGETS.map(Target::At) {
                let mut expected = Vec::new();
                let window = Window { bytes: kernel.window(), side };
                visit(kernel.order(), BLOCK, target, window, |span| {
                    let primitive: Primitive = match (kernel.order(), span.reach) {
                        (Order::Hybrid, Reach::Near) => kernel.near(),
                        _ => kernel.far(),
                    };
                    let subpages = span.start / SUBPAGE..(span.start + span.len) / SUBPAGE;
                    expected.extend(subpages.map(|piece| (piece, primitive.is_non_temporal())));
                });
                for work in [Work::Clear, Work::Copy] {
                    let steps = resolve(work, Plan::of(kernel), target, SUBPAGE);
                    let found: Vec<_> = steps.iter().map(|step| (step.piece, is_past_cache(step.act))).collect();
                    assert_eq!(found, expected, "{kernel} {side:?} {target:?} {work:?}");
                }
            }
        }
    }
}

#[test]
fn target_last_is_the_librarys_order_for_every_target() {
    let plan = Plan::cached(Order::TargetLast);
    for target in 0..SUBPAGES {
        let steps = resolve(Work::Clear, plan, Target::At(target * SUBPAGE), SUBPAGE);
        assert!(pieces(&steps).into_iter().eq(target_last(SUBPAGES, target)), "target {target}");
    }
}

#[test]
fn a_reversed_window_ends_at_the_target() {
    for eighths in 1..8 {
        let window = BLOCK / 8 * eighths;
        let steps = resolve(Work::Copy, Plan::window(window).reversed(), Target::At(0), SUBPAGE);
        let far = (window / SUBPAGE..SUBPAGES).map(|piece| Step { piece, act: Act::Copy { past_cache: true } });
        let near = target_last(window / SUBPAGE, 0).map(|piece| Step { piece, act: Act::Copy { past_cache: false } });
        assert!(steps.into_iter().eq(far.chain(near)), "{eighths}/8");
    }
}

#[test]
fn smaller_pieces_follow_the_same_order() {
    for order in Order::ALL {
        for target in TARGETS.map(Target::At) {
            let plan = Plan { window: Window::around(BLOCK / 4), ..Plan::cached(*order) };
            let whole = pieces(&resolve(Work::Clear, plan, target, SUBPAGE));
            let halves = pieces(&resolve(Work::Clear, plan, target, SUBPAGE / 2));
            assert!(halves.into_iter().eq(whole.into_iter().flat_map(|piece| [2 * piece, 2 * piece + 1])));
        }
    }
}

#[test]
fn after_the_fault_each_piece_is_used_in_order() {
    let steps = life(Work::Clear, Plan::past_cache(), SUBPAGE);
    assert_eq!(steps.len(), 2 * SUBPAGES);
    let used = (0..SUBPAGES).map(|piece| Step { piece, act: Act::Use });
    assert!(steps[SUBPAGES..].iter().copied().eq(used));
}

#[test]
fn each_policy_evicts_its_line() {
    // One set of two ways: line 1 is used twice more, because after one use two bits cannot separate the lines; then 3
    // comes in.
    let left = |policy| {
        let mut cache = Cache::new(policy, 2, 2, LEAD);
        for line in [1, 2, 1, 1] {
            cache.ask(line, 0, false);
        }
        match cache.ask(3, 0, false) {
            Found::Miss(Some(held)) => held.line,
            Found::Miss(None) | Found::Hit => panic!("{policy:?}: the set was full"),
        }
    };
    for policy in Policy::ALL.into_iter().filter(|policy| *policy != Policy::Random) {
        assert_eq!(left(policy), 2, "{policy:?}");
    }
    assert!([1, 2].contains(&left(Policy::Random)));
}

#[test]
fn runs_repeat_and_target_last_is_better_where_the_cache_is_short() {
    let machine = Machine::of_the_patches(Policy::Drrip, 36, 144);
    let straight = run(&machine, Work::Clear, Plan::cached(Order::Straight));
    let last = run(&machine, Work::Clear, Plan::cached(Order::TargetLast));
    assert_eq!(last, run(&machine, Work::Clear, Plan::cached(Order::TargetLast)));
    assert!(last.throughput > 1.1 * straight.throughput, "{last:?} {straight:?}");
    assert!(last.use_misses < straight.use_misses);
}

#[test]
fn arguments_are_explained_or_refused() {
    let asked = |arguments: &[&str]| {
        let mut out = Vec::new();
        let result = answer(arguments.iter().map(ToString::to_string), &mut out);
        (result, String::from_utf8(out).expect("the model prints text"))
    };
    let (result, help) = asked(&["--help"]);
    assert!(result.is_ok() && help.contains("--policy NAME"));
    assert!(help.lines().all(|line| line.chars().count() <= 80));
    assert!(Policy::ALL.iter().all(|policy| help.contains(policy.name())));
    for (arguments, named) in [
        (&["--polcy", "lru"][..], "--polcy"),
        (&["--policy", "mru"], "mru"),
        (&["--policy"], "--policy"),
        (&["--blocks", "-1"], "-1"),
        (&["--blocks", "0"], "0"),
        (&["--json"], "--json"),
        (&["--json", "/nowhere/model.json"], "/nowhere/model.json"),
    ] {
        match asked(arguments) {
            (Err(Failure::Arguments(error)), out) => assert!(error.contains(named) && out.is_empty(), "{error}"),
            (other, _) => panic!("{arguments:?}: {other:?}"),
        }
    }
}
