//! Token embeddings from tables of every type.

use tokenmill_cuda_exec::modules::type_suffix;
use tokenmill_ptx_sim::Arguments;
use tokenmill_testkit::Random;

use crate::kernels::bench::{Sim, assert_close, random_matrix, types};

#[test]
fn rows_of_every_type_come_out_scaled() {
    for ty in types() {
        let n_vocab = 9;
        let n_embd = if ty.block_len() == 1 {
            37
        } else {
            2 * ty.block_len()
        };
        let mut random = Random::new(n_embd as u64);
        let mut sim = Sim::new();
        let (file_rows, values) = random_matrix(&mut random, ty, n_vocab, n_embd);
        let table = sim.matrix(ty, n_vocab, n_embd, &file_rows);
        // Token 2 of the step was sampled in row 1 of the previous step; token 3 comes from a failed row.
        let tokens = sim.u32s(&[8, 0, 0x8000_0001, 0x8000_0000, 3]);
        let sampled = sim.u32s(&[u32::MAX, 5]);
        let y = sim.room(5 * n_embd * 4);
        let arguments = Arguments::new()
            .ptr(table)
            .i32(n_vocab as i32)
            .i32(n_embd as i32)
            .ptr(tokens)
            .ptr(sampled)
            .f32(1.5)
            .ptr(y);
        let module = format!("embed_{}", type_suffix(ty).unwrap());
        sim.launch(&module, "embed", [5, 1, 1], 128, 0, &arguments);
        let expected: Vec<(f64, f64)> = [8, 0, 5, 0, 3]
            .iter()
            .flat_map(|id| &values[id * n_embd..][..n_embd])
            .map(|&x| (1.5 * f64::from(x), f64::from(x.abs()) + 1.0))
            .collect();
        // Scale times quant plus offset, each rounded once; the file's decoder may round in another order.
        assert_close(&sim.read_f32s(y, 5 * n_embd), &expected, 3e-7, &format!("{ty:?}"));
    }
}
