//! Events as JSON lines, and fields of commands.

use std::collections::HashMap;
use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rocketmq_model::common::message::message_ext::MessageExt;
use serde_json::{Value, json};

pub type Fields = HashMap<String, Value>;

/// Prints one whole line.
pub fn print(event: Value) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{event}").and_then(|()| out.flush()).expect("standard output");
}

pub fn text(fields: &Fields, name: &str) -> String {
    fields.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
}

pub fn is_set(fields: &Fields, name: &str) -> bool {
    fields.get(name).and_then(Value::as_bool).unwrap_or_default()
}

pub fn number(fields: &Fields, name: &str) -> i64 {
    fields.get(name).and_then(Value::as_i64).unwrap_or_default()
}

pub fn bytes(value: &Value) -> Vec<u8> {
    BASE64_STANDARD.decode(value.as_str().unwrap_or_default()).expect("base64")
}

pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |each| each.as_millis() as u64)
}

/// Prints a message that a member has received, with the names of the Java agent.
pub fn print_received(member: &str, message: &MessageExt) {
    let properties: HashMap<&str, &str> =
        message.properties().iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    print(json!({
        "event": "received",
        "member": member,
        "at": now_ms(),
        "topic": message.topic().as_str(),
        "body": BASE64_STANDARD.encode(message.body().unwrap_or_default()),
        "tags": properties.get("TAGS"),
        "keys": properties.get("KEYS"),
        "properties": properties,
        "flag": message.flag(),
        "brokerName": message.broker_name(),
        "queueId": message.queue_id(),
        "queueOffset": message.queue_offset(),
        "msgId": message.msg_id().as_str(),
        "bornTimestamp": message.born_timestamp(),
        "storeTimestamp": message.store_timestamp(),
        "reconsumeTimes": message.reconsume_times(),
    }));
}
