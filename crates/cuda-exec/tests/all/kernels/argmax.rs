//! The likeliest token of a row.

use tokenmill_ptx_sim::Arguments;
use tokenmill_testkit::Random;

use crate::kernels::bench::Sim;

fn argmax(rows: &[Vec<f32>], n_parts: usize) -> Vec<u32> {
    let n_vocab = rows[0].len();
    let mut sim = Sim::new();
    let logits = sim.f32s(&rows.concat());
    let (best, sampled) = (sim.room(rows.len() * n_parts * 8), sim.room(rows.len() * 4));
    let arguments = Arguments::new().ptr(logits).i32(n_vocab as i32).ptr(best);
    sim.launch(
        "argmax",
        "argmax_partial",
        [n_parts, rows.len(), 1],
        256,
        0,
        &arguments,
    );
    let arguments = Arguments::new().ptr(best).i32(n_parts as i32).ptr(sampled);
    sim.launch("argmax", "argmax_combine", [rows.len(), 1, 1], 32, 0, &arguments);
    sim.read_u32s(sampled, rows.len())
}

#[test]
fn the_lowest_id_of_the_highest_logits_wins() {
    let mut random = Random::new(8);
    for (n_vocab, n_parts) in [(1, 1), (31, 4), (5000, 3), (2000, 40)] {
        // Few different values, so that there are ties; both zeros are equal.
        let mut row = |_| {
            (0..n_vocab)
                .map(|_| (random.below(7) as f32 - 6.0) * 0.5)
                .collect()
        };
        let mut rows: Vec<Vec<f32>> = (0..3).map(&mut row).collect();
        for value in &mut rows[0] {
            if *value == 0.0 && random.below(2) == 0 {
                *value = -0.0;
            }
        }
        let expected: Vec<u32> = rows
            .iter()
            .map(|row| {
                let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                row.iter().position(|&x| x == max).unwrap() as u32
            })
            .collect();
        assert_eq!(argmax(&rows, n_parts), expected);
    }
}

#[test]
fn rows_that_are_not_finite_have_no_token() {
    let base = vec![1.0; 700];
    let with = |value| {
        let mut row = base.clone();
        row[650] = value;
        row
    };
    let rows = [
        with(f32::NAN),
        with(f32::INFINITY),
        with(f32::NEG_INFINITY),
        vec![f32::NEG_INFINITY; 700],
        with(2.0),
    ];
    assert_eq!(argmax(&rows, 2), [u32::MAX, u32::MAX, 0, u32::MAX, 650]);
}
