//! Runs the thread blocks of a kernel that depends on their order: one after the other, and in turns if they wait for each other.
//!
//! Launches and estimates use it. A thread block that spins is set aside, and the next begins, as long as a device would hold it as well; then
//! the waiting ones take turns. Invariant: without a spin this is index order, and the order of thread blocks depends only on the kernel.

use std::collections::VecDeque;

use crate::{
    Counters,
    exec::{BlockEnd, BlockRunner, LaunchContext, Progress},
};

/// Number of rounds of all resident thread blocks without a write, a new value or an end, after which the launch counts as endless.
const MAX_ROUNDS: u64 = 512;

/// Returns the position of a thread block in a grid.
pub(crate) fn position(grid: [u32; 3], index: u64) -> [u32; 3] {
    let [x, y, _] = grid.map(u64::from);
    [
        (index % x) as u32,
        (index / x % y) as u32,
        (index / (x * y)) as u32,
    ]
}

/// Runs all thread blocks of a launch with at most `n_resident` begun at a time, and passes the result of each to `end`, in the order in which
/// they end. `is_traced` is called as a thread block begins and says whether its instructions are kept. Returns whether thread blocks waited for
/// each other, and the counters.
pub(crate) fn run(
    context: &LaunchContext<'_>,
    n_resident: u64,
    mut is_traced: impl FnMut(u64) -> bool,
    mut end: impl FnMut(BlockEnd),
) -> (bool, Counters) {
    let n_blocks: u64 = context.grid.iter().map(|&n| u64::from(n)).product();
    let mut free: Vec<BlockRunner<'_>> = Vec::new();
    let mut waiting: VecDeque<(u64, BlockRunner<'_>)> = VecDeque::new();
    let (mut next, mut n_idle, mut has_waited) = (0, 0, false);
    loop {
        let has_room = (waiting.len() as u64) < n_resident.max(1);
        let (index, mut runner) = if next < n_blocks && has_room {
            let mut runner = free.pop().unwrap_or_else(|| BlockRunner::new(context));
            runner.begin(next, position(context.grid, next), is_traced(next));
            next += 1;
            (next - 1, runner)
        } else if let Some(first) = waiting.pop_front() {
            first
        } else {
            break;
        };
        let result = runner.resume();
        let is_stopped = result.is_err();
        if result == Ok(Progress::Spins) {
            has_waited = true;
            n_idle = if runner.take_progress() { 0 } else { n_idle + 1 };
            waiting.push_back((index, runner));
            if n_idle <= MAX_ROUNDS * waiting.len() as u64 {
                continue;
            }
        } else {
            n_idle = 0;
            end(runner.take_end(index, is_stopped));
            free.push(runner);
            if !is_stopped {
                continue;
            }
        }
        // A thread block was stopped, or all wait for a value that none will write.
        let n_waiting = waiting.len() as u64;
        for (index, mut runner) in waiting.drain(..) {
            if !is_stopped {
                runner.report_wait(n_waiting, n_blocks - next);
            }
            end(runner.take_end(index, !is_stopped));
            free.push(runner);
        }
        break;
    }
    let mut counters = Counters::default();
    for runner in free {
        counters.add(&runner.finish());
    }
    (has_waited, counters)
}
