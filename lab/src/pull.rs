//! Pulls a model and says what that took: `cargo run --release -p tokenmill-hub --example pull OWNER/REPOSITORY:TYPE`.
//!
//! `HF_ENDPOINT` and `HF_HUB_CACHE` say where from and where to, so that it measures a server on loopback, too.

use std::{env, error::Error, time::Instant};

use tokenmill_hub::{HubSettings, ModelName, PullWishes, plan};

fn main() -> Result<(), Box<dyn Error>> {
    let name: ModelName = env::args()
        .nth(1)
        .ok_or("the name of a model is missing")?
        .parse()?;
    let settings = HubSettings::from_variables(|name| env::var(name).ok());
    let began = Instant::now();
    let plan = plan(&name, &PullWishes::default(), &settings, &())?;
    let n_bytes = plan.missing_bytes;
    let model = plan.fetch(&settings, &())?;
    let seconds = began.elapsed().as_secs_f64();
    let rate = n_bytes as f64 / 1e6 / seconds;
    println!(
        "{}: {n_bytes} bytes in {seconds:.2} s, {rate:.0} MB/s",
        model.path.display()
    );
    Ok(())
}
