//! Launches of products, and of those of experts.

use std::rc::Rc;

use tokenmill_backend::{Activation, ExpertScore, Router};
use tokenmill_cuda_exec::{
    Buffer, CarriedRows, DeviceRoutes, ExpertRows, GatedProduct, Product, QuantizedRows, RouteCounts,
};
use tokenmill_gguf::TensorType;

use super::{
    rows::{ExpertShape, Factor},
    twin::{self, MOST_OUTPUTS, MOST_ROWS, spread},
    work::{FACTOR, HEAD_DIM, N_EMBD, N_FF, N_KV_HEADS, N_VOCAB, OF_EXPERTS, Work, Workshop, shared},
};

/// Returns some values of a result `[rows, n_out]`.
fn picked(all: &[f32], n_out: usize, [rows, outputs]: [&[usize]; 2]) -> Vec<f32> {
    (rows.iter())
        .flat_map(|&row| outputs.iter().map(move |output| all[row * n_out + output]))
        .collect()
}

impl Workshop {
    pub(super) fn product(
        &mut self,
        ty: TensorType,
        factor: Factor,
        n_rows: usize,
    ) -> anyhow::Result<Work<'_>> {
        let [n_out, n_in] = match factor {
            Factor::Output => [N_EMBD, N_EMBD],
            Factor::Gate => [N_FF, N_EMBD],
            Factor::Down => [N_EMBD, N_FF],
            Factor::Head => [N_VOCAB, N_EMBD],
        };
        let n_out = self.n_out(n_out);
        let weights = Rc::new(self.weights(ty, [n_out, n_in], 1, FACTOR)?);
        let rows = Rc::new(self.rows(n_rows, n_in)?);
        let output = shared(self.room(n_rows * n_out)?);
        let (ops, device) = (&self.ops, &self.device);
        let n_bytes = weights.n_bytes() + 4 * n_rows * n_out + n_rows * n_in * 5 / 4;
        let (of_launch, x, written) = (Rc::clone(&weights), Rc::clone(&rows), Rc::clone(&output));
        Ok(Work {
            shape: format!("{n_out} x {n_in} by {n_rows}, {}", ty.name()),
            n_bytes,
            n_flops: 2 * n_rows * n_out * n_in,
            launch: Box::new(move |index| {
                let mut written = written.borrow_mut();
                let product = Product {
                    matrix: of_launch.copy(index),
                    bias: None,
                    output: written.view_mut(),
                };
                ops.linear(&x.input(), &mut [product])
            }),
            check: Some(Box::new(move || {
                let sample = [spread(n_rows, MOST_ROWS), spread(n_out, MOST_OUTPUTS)];
                let sample = sample.each_ref().map(Vec::as_slice);
                let expected = twin::products(ty, &weights.bytes, n_in, &rows.host, sample)?;
                let found = device.download(output.borrow().view())?;
                twin::compare(&picked(&found, n_out, sample), &expected)
            })),
        })
    }

    pub(super) fn qkv(&mut self, n_rows: usize) -> anyhow::Result<Work<'_>> {
        let n_outs = [N_EMBD, N_KV_HEADS * HEAD_DIM, N_KV_HEADS * HEAD_DIM].map(|n_out| self.n_out(n_out));
        let types = [TensorType::Q4_K, TensorType::Q4_K, TensorType::Q6_K];
        let mut all = Vec::new();
        for (seed, (&ty, n_out)) in (1..).zip(types.iter().zip(n_outs)) {
            all.push(self.weights(ty, [n_out, N_EMBD], seed, FACTOR)?);
        }
        let all = Rc::new(all);
        let rows = Rc::new(self.rows(n_rows, N_EMBD)?);
        let outputs = n_outs.map(|n_out| self.room(n_rows * n_out));
        let outputs: Vec<Buffer<f32>> = outputs.into_iter().collect::<anyhow::Result<_>>()?;
        let outputs = shared(outputs);
        let (ops, device) = (&self.ops, &self.device);
        let (of_launch, x, written) = (Rc::clone(&all), Rc::clone(&rows), Rc::clone(&outputs));
        let n_out: usize = n_outs.iter().sum();
        Ok(Work {
            shape: format!(
                "{} + 2 x {} x {N_EMBD} by {n_rows}, Q4_K and Q6_K",
                n_outs[0], n_outs[1]
            ),
            n_bytes: all.iter().map(super::work::Weights::n_bytes).sum::<usize>() + 4 * n_rows * n_out,
            n_flops: 2 * n_rows * n_out * N_EMBD,
            launch: Box::new(move |index| {
                let mut written = written.borrow_mut();
                let mut products: Vec<Product<'_>> = (of_launch.iter().zip(written.iter_mut()))
                    .map(|(weights, output)| Product {
                        matrix: weights.copy(index),
                        bias: None,
                        output: output.view_mut(),
                    })
                    .collect();
                ops.linear(&x.input(), &mut products)
            }),
            check: Some(Box::new(move || {
                let (mut found, mut expected) = (Vec::new(), Vec::new());
                for (((weights, output), ty), n_out) in
                    (all.iter().zip(outputs.borrow().iter()).zip(types)).zip(n_outs)
                {
                    let sample = [spread(n_rows, MOST_ROWS), spread(n_out, MOST_OUTPUTS)];
                    let sample = sample.each_ref().map(Vec::as_slice);
                    expected.extend(twin::products(ty, &weights.bytes, N_EMBD, &rows.host, sample)?);
                    found.extend(picked(&device.download(output.view())?, n_out, sample));
                }
                twin::compare(&found, &expected)
            })),
        })
    }

    pub(super) fn gated(&mut self, ty: TensorType, n_rows: usize) -> anyhow::Result<Work<'_>> {
        let n_out = self.n_out(N_FF);
        let pair = [
            self.weights(ty, [n_out, N_EMBD], 1, FACTOR)?,
            self.weights(ty, [n_out, N_EMBD], 2, FACTOR)?,
        ];
        let pair = Rc::new(pair);
        let rows = Rc::new(self.rows(n_rows, N_EMBD)?);
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
                let sample = [spread(n_rows, MOST_ROWS), spread(n_out, MOST_OUTPUTS)];
                let sample = sample.each_ref().map(Vec::as_slice);
                let of = |which: usize| twin::products(ty, &pair[which].bytes, N_EMBD, &rows.host, sample);
                let expected: Vec<f64> = (of(0)?.into_iter().zip(of(1)?))
                    .map(|(gate, up)| twin::silu(gate) * up)
                    .collect();
                let found = device.download(output.borrow().view())?;
                twin::compare(&picked(&found, n_out, sample), &expected)
            })),
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
                            let of_expert =
                                twin::products(ty, &weights.bytes, n_in, &rows.host, [&[row], &outputs])?;
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
