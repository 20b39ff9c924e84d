//! Launches of products, and of those of experts.

use std::rc::Rc;

use tokenmill_backend::{Activation, ExpertScore, Router};
use tokenmill_cuda_exec::{
    CarriedRows, DeviceRoutes, ExpertRows, GatedProduct, MatrixUse, Product, QuantizedRows, RouteCounts,
    TokenIds,
};
use tokenmill_gguf::TensorType;

use super::{
    rows::ExpertShape,
    twin::{self, MOST_OUTPUTS, MOST_ROWS, spread},
    work::{FACTOR, N_EMBD, OF_EXPERTS, Rows, Weights, Work, Workshop, shared},
};

/// Returns some values of a result `[rows, n_out]`.
fn picked(all: &[f32], n_out: usize, [rows, outputs]: [&[usize]; 2]) -> Vec<f32> {
    (rows.iter())
        .flat_map(|&row| outputs.iter().map(move |output| all[row * n_out + output]))
        .collect()
}

/// A sample of the products of rows by a matrix, with the expected values.
fn sampled(found: &[f32], weights: &Weights, rows: &Rows) -> anyhow::Result<(Vec<f32>, Vec<f64>)> {
    let n_out = weights.shape[0];
    let sample = [spread(rows.n_rows, MOST_ROWS), spread(n_out, MOST_OUTPUTS)];
    let sample = sample.each_ref().map(Vec::as_slice);
    Ok((picked(found, n_out, sample), weights.products(rows, sample)?))
}

impl Workshop {
    /// Launches products of the same rows by matrices, each of a type and so many outputs.
    pub(super) fn products(
        &mut self,
        of: &[(TensorType, usize)],
        n_in: usize,
        n_rows: usize,
    ) -> anyhow::Result<Work<'_>> {
        let mut all = Vec::new();
        for (seed, &(ty, n_out)) in (1..).zip(of) {
            all.push(self.weights(ty, [self.n_out(n_out), n_in], seed, FACTOR)?);
        }
        let all = Rc::new(all);
        let rows = Rc::new(self.product_rows(n_rows, n_in)?);
        let outputs = all.iter().map(|weights| self.room(n_rows * weights.shape[0]));
        let outputs = shared(outputs.collect::<anyhow::Result<Vec<_>>>()?);
        let (ops, device) = (&self.ops, &self.device);
        let (of_launch, x, written) = (Rc::clone(&all), Rc::clone(&rows), Rc::clone(&outputs));
        let n_out: usize = all.iter().map(|weights| weights.shape[0]).sum();
        let joined =
            |told: fn(&Weights) -> String, by: &str| all.iter().map(told).collect::<Vec<_>>().join(by);
        Ok(Work {
            shape: format!(
                "{} x {n_in} by {n_rows}, {}",
                joined(|weights| weights.shape[0].to_string(), " + "),
                joined(|weights| weights.ty.name().to_owned(), ", ")
            ),
            n_bytes: all.iter().map(Weights::n_bytes).sum::<usize>()
                + 4 * n_rows * n_out
                + n_rows * n_in * 5 / 4,
            n_flops: 2 * n_rows * n_out * n_in,
            launch: Box::new(move |index| {
                let mut written = written.borrow_mut();
                let products = (of_launch.iter().zip(written.iter_mut())).map(|(weights, output)| Product {
                    matrix: weights.copy(index),
                    bias: None,
                    output: output.view_mut(),
                });
                ops.linear(&x.input(), &mut products.collect::<Vec<_>>())
            }),
            check: Some(Box::new(move || {
                let (mut found, mut expected) = (Vec::new(), Vec::new());
                for (weights, output) in all.iter().zip(outputs.borrow().iter()) {
                    let (some, twins) = sampled(&device.download(output.view())?, weights, &rows)?;
                    found.extend(some);
                    expected.extend(twins);
                }
                twin::compare(&found, &expected)
            })),
        })
    }

    pub(super) fn gated(&mut self, ty: TensorType, n_out: usize, n_rows: usize) -> anyhow::Result<Work<'_>> {
        let n_out = self.n_out(n_out);
        let pair = [
            self.weights(ty, [n_out, N_EMBD], 1, FACTOR)?,
            self.weights(ty, [n_out, N_EMBD], 2, FACTOR)?,
        ];
        let pair = Rc::new(pair);
        let rows = Rc::new(self.product_rows(n_rows, N_EMBD)?);
        let output = shared(self.room(n_rows * n_out)?);
        let mut quantized = QuantizedRows::new(&self.device, n_rows, n_out)?;
        let (ops, device) = (&self.ops, &self.device);
        let (of_launch, x, written) = (Rc::clone(&pair), Rc::clone(&rows), Rc::clone(&output));
        Ok(Work {
            shape: format!("2 x {n_out} x {N_EMBD} by {n_rows}, {}", ty.name()),
            n_bytes: 2 * pair[0].n_bytes() + 4 * n_rows * n_out,
            n_flops: 4 * n_rows * n_out * N_EMBD,
            launch: Box::new(move |index| {
                let mut written = written.borrow_mut();
                let product = GatedProduct {
                    matrices: of_launch.each_ref().map(|weights| weights.copy(index)),
                    biases: [None, None],
                    activation: Activation::Silu,
                    output: written.view_mut(),
                    quantized: Some(quantized.view_mut()),
                };
                ops.matvec_gated(&x.input(), product)
            }),
            check: Some(Box::new(move || {
                let all = device.download(output.borrow().view())?;
                let (found, gate) = sampled(&all, &pair[0], &rows)?;
                let (_, up) = sampled(&all, &pair[1], &rows)?;
                let expected: Vec<f64> = (gate.into_iter().zip(up))
                    .map(|(gate, up)| twin::silu(gate) * up)
                    .collect();
                twin::compare(&found, &expected)
            })),
        })
    }

    /// Launches the look-up of one row of a table.
    pub(super) fn embed(&mut self, ty: TensorType) -> anyhow::Result<Work<'_>> {
        const N_TOKENS: usize = 64;
        const TABLE: MatrixUse = MatrixUse {
            is_table: true,
            is_factor: false,
            is_of_experts: false,
        };
        let table = self.weights(ty, [N_TOKENS, N_EMBD], 1, TABLE)?;
        let (token, none) = (
            self.device.upload("tokens", &[7])?,
            self.device.upload("tokens", &[0])?,
        );
        let mut output = self.room(N_EMBD)?;
        let ops = &self.ops;
        Ok(Work {
            shape: format!("1 row of {N_EMBD}, {}", ty.name()),
            n_bytes: table.n_bytes() / N_TOKENS + 4 * N_EMBD,
            n_flops: N_EMBD,
            launch: Box::new(move |index| {
                let ids = TokenIds {
                    tokens: token.view(),
                    sampled: none.view(),
                };
                ops.embed(table.copy(index), ids, 1.0, output.view_mut())
            }),
            check: None,
        })
    }

    pub(super) fn experts(&mut self, of: ExpertShape, n_rows: usize) -> anyhow::Result<Work<'_>> {
        let ExpertShape {
            ty,
            n_experts,
            n_used,
            n_in,
            n_out,
        } = of;
        let n_out = self.n_out(n_out);
        let pair = [
            self.weights(ty, [n_experts * n_out, n_in], 1, OF_EXPERTS)?,
            self.weights(ty, [n_experts * n_out, n_in], 2, OF_EXPERTS)?,
        ];
        let pair = Rc::new(pair);
        let rows = Rc::new(self.rows(n_rows, n_in)?);
        let (ops, device) = (&self.ops, &self.device);
        let counts = RouteCounts {
            n_rows,
            n_used,
            n_experts,
        };
        let router = Router {
            n_experts,
            n_used,
            score: ExpertScore::Softmax,
            choice_bias: None,
            groups: None,
            is_normalized: true,
            scale: 1.0,
            expert_scales: None,
        };
        let logits = self.values(5, n_rows * n_experts);
        let logits_there = device.upload("logits", &logits)?;
        let mut routes = DeviceRoutes::new(device, n_rows, n_experts, n_used)?;
        ops.route(&router, n_rows, logits_there.view(), &mut routes)?;
        let routes = Rc::new(routes);
        let n_choices = n_rows * n_used;
        let outputs = shared([self.room(n_choices * n_out)?, self.room(n_choices * n_out)?]);
        let n_expert_bytes = 2 * pair[0].n_bytes() / n_experts;
        let (of_launch, x) = (Rc::clone(&pair), Rc::clone(&rows));
        let (written, of_rows) = (Rc::clone(&outputs), Rc::clone(&routes));
        Ok(Work {
            shape: format!(
                "2 x {n_out} x {n_in} by {n_rows} to {n_used} of {n_experts}, {}",
                ty.name()
            ),
            // As many experts as can be chosen.
            n_bytes: n_choices.min(n_experts) * n_expert_bytes + 8 * n_choices * n_out,
            n_flops: 4 * n_choices * n_out * n_in,
            launch: Box::new(move |index| {
                let input = ExpertRows {
                    is_by_choice: false,
                    floats: x.floats.view(),
                    quantized: Some(x.quantized.view()),
                };
                let mut written = written.borrow_mut();
                let [gate, up] = &mut *written;
                let outputs = [gate.view_mut(), up.view_mut()];
                let mut products: Vec<Product<'_>> = (of_launch.iter().zip(outputs))
                    .map(|(weights, output)| Product {
                        matrix: weights.copy(index),
                        bias: None,
                        output,
                    })
                    .collect();
                ops.experts(&of_rows, counts, input, n_out, &mut products)
            }),
            check: Some(Box::new(move || {
                // The choices of a row are at the positions of the sort; weighted and summed they give the row
                // again.
                let (mut found, mut expected) = (Vec::new(), Vec::new());
                let sampled = spread(n_rows, MOST_ROWS);
                for (weights, output) in pair.iter().zip(outputs.borrow().iter()) {
                    let mut sums = device.alloc::<f32>("results", n_rows * n_out)?;
                    let nothing = CarriedRows::Nothing;
                    ops.combine(
                        &routes,
                        [n_rows, n_used],
                        n_out,
                        output.view(),
                        nothing,
                        sums.view_mut(),
                    )?;
                    let places = spread(n_out, MOST_OUTPUTS / n_used);
                    found.extend(picked(&device.download(sums.view())?, n_out, [&sampled, &places]));
                    for &row in &sampled {
                        let chosen = choices(&logits[row * n_experts..(row + 1) * n_experts], n_used);
                        let mut sums = vec![0.0; places.len()];
                        for (expert, weight) in chosen {
                            let outputs: Vec<usize> =
                                places.iter().map(|place| expert * n_out + place).collect();
                            let of_expert = weights.products(&rows, [&[row], &outputs])?;
                            for (sum, product) in sums.iter_mut().zip(of_expert) {
                                *sum += weight * product;
                            }
                        }
                        expected.extend(sums);
                    }
                }
                twin::compare(&found, &expected)
            })),
        })
    }
}

/// Returns the experts of a row and their weights, which add up to 1.
fn choices(logits: &[f32], n_used: usize) -> Vec<(usize, f64)> {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    order.truncate(n_used);
    let powers: Vec<f64> = order
        .iter()
        .map(|&expert| f64::from(logits[expert]).exp())
        .collect();
    let sum: f64 = powers.iter().sum();
    order
        .into_iter()
        .zip(powers.iter().map(|power| power / sum))
        .collect()
}
