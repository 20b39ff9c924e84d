//! `cargo xtask`: the table of the project's own commands.
//!
//! Each command is one module of the library in this folder. A new one is its module and a row here.
#![forbid(unsafe_code)]

use clap::Parser;

/// Writes the command enum and its dispatch, one row per command.
macro_rules! commands {
    ($($name:ident => $module:ident;)*) => {
        #[derive(Parser)]
        #[command(name = "cargo xtask", about = "The project's own tools")]
        enum Command {
            $($name(xtask::$module::Args),)*
        }

        fn main() -> anyhow::Result<()> {
            match Command::parse() {
                $(Command::$name(args) => xtask::$module::run(&args),)*
            }
        }
    };
}

commands! {
    Bench => bench;
    Ci => ci;
    Conformance => conformance;
    DeviceCompare => device_compare;
    DevicePack => device_pack;
    DeviceReport => device_report;
    KernelBench => kernel_bench;
    KernelEstimate => kernel_estimate;
    Parity => parity;
    Ptx => ptx;
    Release => release;
    Synth => synth;
    Tidy => tidy;
}
