//! Sends: one by one, without an answer, in batches, in order, as transactions.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;

use cheetah_string::CheetahString;
use rocketmq_client_rust::{
    ClientConfig, ClientRuntime, DefaultMQProducer, LocalTransactionState, TransactionListener,
    TransactionMQProducer,
};
use rocketmq_model::common::message::MessageTrait;
use rocketmq_model::common::message::message_ext::MessageExt;
use rocketmq_model::common::message::message_single::Message;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::Failure;
use crate::lines::{self, Fields};

const LOCAL: &str = "local";
const CHECKED: &str = "checked";

pub struct Senders {
    runtime: Arc<ClientRuntime>,
    producers: HashMap<String, DefaultMQProducer>,
    transacting: HashMap<String, TransactionMQProducer>,
}

impl Senders {
    pub fn new(runtime: Arc<ClientRuntime>) -> Self {
        Senders { runtime, producers: HashMap::new(), transacting: HashMap::new() }
    }

    pub async fn create(&mut self, command: &Fields) -> Result<Value, Failure> {
        let queues = lines::number(command, "queues") as i32;
        let topic = lines::text(command, "topic");
        let producer = self.producer(command).await?;
        producer.create_topic("TBW102", &topic, queues, HashMap::new()).await?;
        Ok(json!({"event": "created"}))
    }

    /// The way is sync, async, oneway, batch or order; the last puts a message into queue `order` of its properties.
    pub async fn send(&mut self, command: &Fields) -> Result<Value, Failure> {
        let way = lines::text(command, "way");
        let messages = messages_of(command);
        let producer = self.producer(command).await?;
        let began = lines::now_ms();
        let mut results = Vec::new();
        if way == "batch" {
            results.push(shown(Some(producer.send_batch(messages).await?)));
        } else {
            for message in messages {
                results.push(match way.as_str() {
                    "sync" => shown(producer.send(message).await?),
                    "oneway" => {
                        producer.send_oneway(message).await?;
                        Value::Null
                    }
                    "order" => {
                        let key = message.property("order").and_then(|each| each.parse().ok()).unwrap_or(0usize);
                        let sent = producer
                            .send_with_selector(
                                message,
                                |queues, _message, key: &usize| Some(queues[key % queues.len()].clone()),
                                key,
                            )
                            .await?;
                        shown(sent)
                    }
                    _ => return Err(format!("no such way: {way}").into()),
                });
            }
        }
        let ended = lines::now_ms();
        Ok(json!({"event": "sent", "results": results, "wire": [], "began": began, "ended": ended}))
    }

    pub async fn transact(&mut self, command: &Fields) -> Result<Value, Failure> {
        let group = lines::text(command, "group");
        let topic = lines::text(command, "topic");
        if !self.transacting.contains_key(&group) {
            let mut producer = TransactionMQProducer::builder(self.runtime.clone())
                .producer_group(group.clone())
                .name_server_addr(lines::text(command, "nameServer"))
                .topics(vec![topic.clone()])
                .transaction_listener(Deciding::default())
                .build();
            producer.start().await?;
            self.transacting.insert(group.clone(), producer);
        }
        let producer = self.transacting.get_mut(&group).expect("it was made above");
        let mut results = Vec::new();
        for message in messages_of(command) {
            let sent = producer.send_message_in_transaction::<(), _>(message, None).await?;
            results.push(json!({"status": format!("{sent}")}));
        }
        Ok(json!({"event": "sent", "results": results}))
    }

    pub async fn close(&mut self) {
        for producer in self.producers.values_mut() {
            producer.shutdown().await;
        }
        for producer in self.transacting.values_mut() {
            producer.shutdown().await;
        }
    }

    async fn producer(&mut self, command: &Fields) -> Result<&mut DefaultMQProducer, Failure> {
        let group = lines::text(command, "group");
        if !self.producers.contains_key(&group) {
            let config = ClientConfig {
                namesrv_addr: Some(lines::text(command, "nameServer").into()),
                vip_channel_enabled: false,
                ..Default::default()
            };
            let mut producer = DefaultMQProducer::builder(self.runtime.clone())
                .client_config(config)
                .producer_group(group.clone())
                .build();
            producer.start().await?;
            self.producers.insert(group.clone(), producer);
        }
        Ok(self.producers.get_mut(&group).expect("it was made above"))
    }
}

fn messages_of(command: &Fields) -> Vec<Message> {
    let topic = lines::text(command, "topic");
    let found = command["messages"].as_array().expect("messages");
    found.iter().map(|each| message_of(&topic, each)).collect()
}

fn message_of(topic: &str, wanted: &Value) -> Message {
    let mut made = Message::builder().topic(topic).body(lines::bytes(&wanted["body"]));
    if let Some(tags) = wanted["tags"].as_str() {
        made = made.tags(tags);
    }
    if let Some(keys) = wanted["keys"].as_str() {
        made = made.key(keys);
    }
    if let Some(level) = wanted["delayLevel"].as_i64().filter(|each| *each > 0) {
        made = made.delay_level(level as i32);
    }
    for (name, value) in wanted["properties"].as_object().into_iter().flatten() {
        made = made.raw_property(name.as_str(), value.as_str().unwrap_or_default()).expect("a property");
    }
    let flag = wanted["flag"].as_i64().unwrap_or_default() as i32;
    made.flag_bits(flag).wait_store_msg_ok(wanted["wait"].as_bool().unwrap_or(true)).build_unchecked()
}

fn shown(sent: Option<rocketmq_client_rust::SendResult>) -> Value {
    let Some(sent) = sent else { return Value::Null };
    let status = match format!("{:?}", sent.send_status).as_str() {
        "SendOk" => "SEND_OK".to_owned(),
        other => other.to_owned(),
    };
    json!({"status": status, "msgId": sent.msg_id.as_ref().map(|each| each.to_string())})
}

/// A listener that decides what the message's properties say: `local` at the send, `checked` at each check in turn.
#[derive(Default)]
struct Deciding {
    checks: Arc<Mutex<HashMap<CheetahString, usize>>>,
}

impl TransactionListener for Deciding {
    fn execute_local_transaction(
        &self,
        message: &dyn MessageTrait,
        _argument: Option<&(dyn Any + Send + Sync)>,
    ) -> LocalTransactionState {
        state(&message.property(&CheetahString::from_static_str(LOCAL)).unwrap_or_default())
    }

    fn check_local_transaction(&self, message: &MessageExt) -> LocalTransactionState {
        let property = |name: &str| message.properties().get(&CheetahString::from_slice(name)).cloned();
        let serial = property("serial").unwrap_or_default();
        let outcomes = property(CHECKED).unwrap_or_default();
        let mut checks = self.checks.blocking_lock();
        let count = checks.entry(serial.clone()).or_default();
        let outcomes: Vec<&str> = outcomes.split(',').collect();
        let outcome = outcomes[(*count).min(outcomes.len() - 1)];
        lines::print(json!({
            "event": "checked", "member": CHECKED, "serial": serial.as_str(), "outcome": outcome, "check": *count,
        }));
        *count += 1;
        state(outcome)
    }
}

fn state(outcome: &str) -> LocalTransactionState {
    match outcome {
        "commit" => LocalTransactionState::CommitMessage,
        "rollback" => LocalTransactionState::RollbackMessage,
        _ => LocalTransactionState::Unknown,
    }
}
