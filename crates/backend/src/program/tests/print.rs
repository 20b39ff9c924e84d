//! The printed form of programs, in full.

use super::super::narrow::Wanted;
use super::super::{Op, Program, StepVariant, Value};
use super::{net, networks};

/// Asserts the printed form, of which `expected` has the lines, indented.
fn check(program: &Program, expected: &str) {
    let lines = |text: &str| {
        text.trim()
            .lines()
            .map(|line| line.trim().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(lines(&program.to_string()), lines(expected));
}

#[test]
fn llama_is_printed_as_written() {
    let expected = "
        -- Input
        x0 = embed(token_embd) [T, 64]
        -- Mixer(0)
        x1 = norm(x0, blk.0.attn_norm) [T, 64]
        x2 = linear(x1, blk.0.attn_q) [T, 64]
        x3 = linear(x1, blk.0.attn_k) [T, 32]
        x4 = linear(x1, blk.0.attn_v) [T, 32]
        x5 = rope(x2!, halves 16 of 16) [T, 64]
        x6 = rope(x3!, halves 16 of 16) [T, 32]
        store_kv(x6, x4, kv.0)
        x7 = attention(x5, kv.0, 4 heads, scale 0.25) [T, 64]
        x8 = linear(x7, blk.0.attn_output) [T, 64]
        x9 = add(x0!, x8) [T, 64]
        -- Ffn(0)
        x10 = norm(x9, blk.0.ffn_norm) [T, 64]
        x11 = linear(x10, blk.0.ffn_gate) [T, 128]
        x12 = linear(x10, blk.0.ffn_up) [T, 128]
        x13 = activation(x11!, x12, Silu) [T, 128]
        x14 = linear(x13, blk.0.ffn_down) [T, 64]
        x15 = add(x9!, x14) [T, 64]
        -- Mixer(1)
        x16 = norm(x15, blk.1.attn_norm) [T, 64]
        x17 = linear(x16, blk.1.attn_q) [T, 64]
        x18 = linear(x16, blk.1.attn_k) [T, 32]
        x19 = linear(x16, blk.1.attn_v) [T, 32]
        x20 = rope(x17!, halves 16 of 16) [T, 64]
        x21 = rope(x18!, halves 16 of 16) [T, 32]
        store_kv(x21, x19, kv.1)
        x22 = attention(x20, kv.1, 4 heads, scale 0.25) [T, 64]
        x23 = linear(x22, blk.1.attn_output) [T, 64]
        x24 = add(x15!, x23) [T, 64]
        -- Ffn(1)
        x25 = norm(x24, blk.1.ffn_norm) [T, 64]
        x26 = linear(x25, blk.1.ffn_gate) [T, 128]
        x27 = linear(x25, blk.1.ffn_up) [T, 128]
        x28 = activation(x26!, x27, Silu) [T, 128]
        x29 = linear(x28, blk.1.ffn_down) [T, 64]
        x30 = add(x24!, x29) [T, 64]
        -- Output
        x31 = gather(x30, Outputs) [O, 64]
        x32 = norm(x31, output_norm) [O, 64]
        x33 = gather(x32, LogitsOfOutputs) [L, 64]
        x34 = linear(x33, output) [L, 256]
        sample(x34~, x32)
    ";
    check(&networks::llama(2), expected);
}

#[test]
fn a_narrowed_and_fused_llama_is_printed() {
    let expected = "
        -- Input
        x0 = embed(token_embd) [T, 64]
        -- Mixer(0)
        x1 = norm(x0, blk.0.attn_norm) [T, 64]
        x2, x3, x4 = linear_group(x1, blk.0.attn_q, blk.0.attn_k, blk.0.attn_v) [T, 64], [T, 32]
        x7 = rope_attention(x2~, x3~, x4, kv.0, halves 16 of 16, 4 heads, scale 0.25) [T, 64]
        x9, x10, x8 = linear_add_norm(x7, x0!, blk.0.attn_output, blk.0.ffn_norm) [T, 64]
        -- Ffn(0)
        x13, x12 = linear_gated(x10, Silu, blk.0.ffn_gate, blk.0.ffn_up) [T, 128]
        x15, x16, x14 = linear_add_norm(x13, x9!, blk.0.ffn_down, blk.1.attn_norm) [T, 64]
        -- Mixer(1)
        x17, x18, x19 = linear_group(x16, blk.1.attn_q, blk.1.attn_k, blk.1.attn_v) [T, 64], [T, 32]
        x22 = rope_attention(x17~, x18~, x19, kv.1, halves 16 of 16, 4 heads, scale 0.25) [T, 64]
        x35 = gather(x22, Outputs) [O, 64]
        x36 = gather(x15, Outputs) [O, 64]
        x24, x25, x23 = linear_add_norm(x35, x36!, blk.1.attn_output, blk.1.ffn_norm) [O, 64]
        -- Ffn(1)
        x28, x27 = linear_gated(x25, Silu, blk.1.ffn_gate, blk.1.ffn_up) [O, 128]
        x29 = linear(x28, blk.1.ffn_down) [O, 64]
        x30, x32 = add_norm(x24!, x29, output_norm) [O, 64]
        -- Output
        x33 = gather(x32, LogitsOfOutputs) [L, 64]
        x34 = linear(x33, output) [L, 256]
        sample(x34~, x32)
    ";
    let variant = StepVariant {
        outputs: Wanted::Some,
        logits: Wanted::Some,
    };
    check(&networks::llama(2).narrowed(variant).fused(), expected);
}

#[test]
fn a_step_without_outputs_is_printed() {
    let expected = "
        -- Input
        x0 = embed(token_embd) [T, 64]
        -- Mixer(0)
        x1 = norm(x0, blk.0.attn_norm) [T, 64]
        x3, x4 = linear_group(x1, blk.0.attn_k, blk.0.attn_v) [T, 32]
        x6 = rope(x3!, halves 16 of 16) [T, 32]
        store_kv(x6, x4, kv.0)
        -- Output
        sample()
    ";
    check(
        &networks::llama(1).narrowed(StepVariant::ALL[6]).fused(),
        expected,
    );
}

#[test]
fn weights_and_values_that_do_not_exist_are_printed_by_index() {
    let mut program = networks::llama(1);
    let linear = match program.ops[2].op {
        Op::Linear { mut linear, .. } => {
            linear.matrix.0 = 77;
            linear
        }
        _ => panic!("queries are a product"),
    };
    let (x, y) = (Value(1), Value(99));
    program.ops[2].op = Op::Linear { linear, x, y };
    assert_eq!(program.line(2), "x99 = linear(x1, matrix 77) ");
}

#[test]
fn attributes_are_printed() {
    let mut net = net::Net::with_kv(1);
    let x = net.embed();
    let x = net.program.push(|y| Op::Scale {
        scale: 0.5,
        cap: Some(30.0),
        x,
        y,
    });
    let x = net.program.push(|y| Op::Add {
        scale: 0.25,
        x,
        delta: x,
        y,
    });
    let mut attention = net::attention_to(0);
    attention.window = Some(8);
    attention.softcap = Some(50.0);
    attention.sinks = Some(net.vector("sinks", net::N_HEADS));
    let x = net.attention(attention, x);
    attention.is_chunked = true;
    attention.sinks = None;
    attention.slopes = Some(net.vector("slopes", net::N_HEADS));
    net.attention(attention, x);
    let expected = "
        -- Common
        x0 = embed(token_embd) [T, 64]
        x1 = scale(x0!, scale 0.5, cap 30) [T, 64]
        x2 = add(x1!, x1, scale 0.25) [T, 64]
        x3 = attention(x2, kv.0, 4 heads, scale 0.25, window 8, cap 50, sinks) [T, 64]
        x4 = attention(x3, kv.0, 4 heads, scale 0.25, chunks 8, cap 50, slopes) [T, 64]
    ";
    check(&net.program, expected);
}
