//! A client process under remote control: commands come as JSON lines, what happened leaves as JSON lines.

#![recursion_limit = "512"]
mod lines;
mod members;
mod senders;

use std::collections::HashMap;
use std::io::BufRead;
use std::sync::Arc;

use rocketmq_client_rust::{ClientRuntime, ClientRuntimeConfig};
use rocketmq_observability::TelemetryRuntimeGuard;
use rocketmq_runtime::RuntimeOwner;
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::members::Members;
use crate::senders::Senders;

pub type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let owner = RuntimeOwner::new()?;
    let telemetry = TelemetryRuntimeGuard::noop();
    let runtime = ClientRuntime::try_new(
        owner.root_context().component("agent"),
        ClientRuntimeConfig::default(),
        telemetry.handle(),
    )?;
    let (to_agent, commands) = unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if to_agent.send(line).is_err() {
                break;
            }
        }
    });
    lines::print(json!({"event": "ready"}));
    owner.block_on(serve(runtime, commands));
    std::process::exit(0); // no report of a clean shutdown is wanted
}

async fn serve(runtime: Arc<ClientRuntime>, mut commands: UnboundedReceiver<String>) {
    let mut senders = Senders::new(runtime.clone());
    let mut members = Members::new(runtime);
    while let Some(line) = commands.recv().await {
        let command: HashMap<String, Value> = serde_json::from_str(&line).expect("a command");
        let name = lines::text(&command, "command");
        let done = match name.as_str() {
            "send" => senders.send(&command).await,
            "transact" => senders.transact(&command).await,
            "create" => senders.create(&command).await,
            "join" => members.join(&command).await,
            "lite" => members.join_lite(&command).await,
            "leave" => members.leave(&command).await,
            _ => Err(format!("no such command: {name}").into()),
        };
        let mut event = done.unwrap_or_else(|error| json!({"event": "failed", "error": format!("{error:?}")}));
        event["id"] = command["id"].clone();
        lines::print(event);
    }
    members.close().await;
    senders.close().await;
}
