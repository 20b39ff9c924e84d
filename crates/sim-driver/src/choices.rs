//! [`make_up`]: invents the experts of each row for estimated launches.
//!
//! The estimate runs the kernel that sorts the choices, and plays the products by its lists. An estimated model has no weights: its routers would
//! send all rows to the first experts, and products by experts would have few runs, all of them full. Invariant: the experts of a row differ, and
//! the same numbers give the same choices.

use tokenmill_ptx_sim::{Arguments, DeviceMemory, DevicePtr};

/// The kernel that reads the choices, in its module.
const READER: [&str; 2] = ["route", "sort_choices"];

/// Writes choices to the buffer that the kernel reads, if it is the kernel that sorts choices: `[n_rows, n_used]` experts, all equally likely.
///
/// # Errors
/// A text, if its arguments differ from those of `route.cu`.
pub(crate) fn make_up(
    module: &str,
    kernel: &str,
    memory: &DeviceMemory,
    arguments: &Arguments,
) -> Result<(), String> {
    if [module, kernel] != READER {
        return Ok(());
    }
    let values: Vec<&[u8]> = arguments.values().take(4).collect();
    let address = values.first().and_then(|value| (*value).try_into().ok());
    let count = |index: usize| {
        let value: Option<[u8; 4]> = values.get(index).and_then(|value| (*value).try_into().ok());
        value.map(|value| u32::from_le_bytes(value) as usize)
    };
    let counts = [count(1), count(2), count(3)];
    let (Some(address), [Some(n_choices), Some(n_used @ 1..), Some(n_experts)]) = (address, counts) else {
        return Err(format!(
            "`{kernel}` has other arguments than its choices and three counts"
        ));
    };
    let choices: Vec<u8> = draw(n_choices, n_used, n_experts)
        .into_iter()
        .flat_map(u32::to_le_bytes)
        .collect();
    let address = DevicePtr(u64::from_le_bytes(address));
    (memory.write(address, &choices)).map_err(|error| error.to_string())
}

/// Returns `n_choices` experts; each run of `n_used` has different ones.
fn draw(n_choices: usize, n_used: usize, n_experts: usize) -> Vec<u32> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    // The numbers of a linear congruence, by their upper bits (Knuth's MMIX).
    let mut below = |n: usize| {
        state = (state.wrapping_mul(6_364_136_223_846_793_005)).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) as usize * n) >> 31
    };
    let mut experts: Vec<u32> = (0..n_experts as u32).collect();
    let mut choices = Vec::with_capacity(n_choices);
    while choices.len() < n_choices {
        for at in 0..n_used.min(n_choices - choices.len()) {
            let other = at + below(n_experts - at);
            experts.swap(at, other);
            choices.push(experts[at]);
        }
    }
    choices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_different_experts_and_all_are_met() {
        let choices = draw(512, 8, 128);
        assert_eq!(choices.len(), 512);
        for row in choices.chunks(8) {
            let mut row = row.to_vec();
            row.sort_unstable();
            row.dedup();
            assert_eq!(row.len(), 8);
        }
        let counts: Vec<usize> = (0..128)
            .map(|expert| choices.iter().filter(|choice| **choice == expert).count())
            .collect();
        // Four for each expert on average; by chance two or three experts have none.
        assert!(
            counts.iter().filter(|count| **count == 0).count() < 8,
            "{counts:?}"
        );
        assert!(counts.iter().all(|count| *count < 16), "{counts:?}");
        assert_eq!(choices, draw(512, 8, 128));
    }

    #[test]
    fn only_the_kernel_that_sorts_choices_gets_some() {
        let mut memory = DeviceMemory::sparse(1 << 20);
        let buffer = memory.alloc(64).unwrap();
        let arguments = Arguments::new().ptr(buffer).i32(16).i32(4).i32(4);
        let read = |memory: &DeviceMemory| memory.read_vec(buffer, 64).unwrap();
        make_up("route", "combine", &memory, &arguments).unwrap();
        assert_eq!(read(&memory), vec![0; 64]);
        make_up("route", "sort_choices", &memory, &arguments).unwrap();
        for row in read(&memory).chunks(16) {
            let mut row: Vec<u8> = row.iter().step_by(4).copied().collect();
            row.sort_unstable();
            assert_eq!(row, [0, 1, 2, 3]);
        }
        let message = make_up("route", "sort_choices", &memory, &Arguments::new()).unwrap_err();
        assert_eq!(
            message,
            "`sort_choices` has other arguments than its choices and three counts"
        );
    }
}
