//! Models that take more memory than there is.
//!
//! Separate because the numbers decide what there is to do.

use tokenmill::machine::MemoryLimit;
use tokenmill_backend::MemoryPlan;

use super::Failure;
use crate::{memory_words::limit_text, numbers::size};

/// The hint for a system that is out of memory.
pub(super) const HOW_TO_TAKE_LESS: &str = "`-c N` and `-ctk q8_0 -ctv q8_0` take less for keys and values, `-ub N` less for a step, and a file of a smaller \
     type less for the weights";

/// Says what the weights take that do not fit now.
pub(super) fn weights_too_large(weights_bytes: usize, available_bytes: u64) -> Failure {
    let failure = Failure::input(format!(
        "the model's weights take {} of memory, and {} are available now",
        size(weights_bytes),
        size(available_bytes as usize)
    ));
    failure.hint("end other programs, or take a model of fewer or smaller weights")
}

/// Says what a load takes that is larger than the memory that there is.
pub(super) fn not_enough_memory(plan: &MemoryPlan, limit: MemoryLimit) -> Failure {
    let needed_bytes = plan.total_bytes();
    let hint = if needed_bytes.saturating_sub(plan.kv_bytes) as u64 > limit.n_bytes() {
        "no context is small enough; take a model of fewer or smaller weights"
    } else {
        "give a smaller context with -c (`serve` and `batch` also take --kv-cache-tokens)"
    };
    let failure = Failure::input(format!(
        "the model needs {} of memory, {} of it for keys and values, and {}",
        size(needed_bytes),
        size(plan.kv_bytes),
        limit_text(limit)
    ));
    failure.hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_beyond_the_whole_memory_says_what_to_do() {
        let plan = MemoryPlan {
            weights_bytes: 1 << 20,
            kv_bytes: 6 << 20,
            activations_bytes: 1 << 20,
            ..MemoryPlan::default()
        };
        insta::assert_snapshot!(
            not_enough_memory(&plan, MemoryLimit::Machine { n_bytes: (8 << 20) - 1 }).line(),
            @"error: the model needs 8.0 MiB of memory, 6.0 MiB of it for keys and values, and this machine has 8.0 MiB in all (hint: give a smaller context with -c (`serve` and `batch` also take --kv-cache-tokens))"
        );
        insta::assert_snapshot!(
            not_enough_memory(&plan, MemoryLimit::AddressSpace { n_bytes: 1 << 20 }).line(),
            @"error: the model needs 8.0 MiB of memory, 6.0 MiB of it for keys and values, and the limit of `ulimit -v` leaves 1.0 MiB (hint: no context is small enough; take a model of fewer or smaller weights)"
        );
    }

    #[test]
    fn weights_beyond_what_is_available_say_what_to_do() {
        insta::assert_snapshot!(
            weights_too_large(2 << 20, 1 << 20).line(),
            @"error: the model's weights take 2.0 MiB of memory, and 1.0 MiB are available now (hint: end other programs, or take a model of fewer or smaller weights)"
        );
    }
}
