//! Members of consumer groups: each prints every message that it gets.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rocketmq_client_rust::{
    ClientConfig, ClientResult, ClientRuntime, ConsumeConcurrentlyContext, ConsumeConcurrentlyStatus,
    ConsumeOrderlyContext, ConsumeOrderlyStatus, DefaultLitePullConsumer, DefaultMQPushConsumer,
    MQPushConsumer, MessageListenerConcurrently, MessageListenerOrderly, MessageSelector,
};
use rocketmq_model::common::consumer::consume_from_where::ConsumeFromWhere;
use rocketmq_model::common::message::message_ext::MessageExt;
use serde_json::{Value, json};

use crate::Failure;
use crate::lines::{self, Fields};

const POLL_MS: u64 = 200;

enum Member {
    Push(Box<DefaultMQPushConsumer>),
    Lite(Arc<DefaultLitePullConsumer>, Arc<AtomicBool>),
}

pub struct Members {
    runtime: Arc<ClientRuntime>,
    members: HashMap<String, Member>,
}

impl Members {
    pub fn new(runtime: Arc<ClientRuntime>) -> Self {
        Members { runtime, members: HashMap::new() }
    }

    pub async fn join(&mut self, command: &Fields) -> Result<Value, Failure> {
        let name = lines::text(command, "member");
        let topic = lines::text(command, "topic");
        let config = ClientConfig {
            namesrv_addr: Some(lines::text(command, "nameServer").into()),
            instance_name: name.clone().into(),
            vip_channel_enabled: false,
            ..Default::default()
        };
        let mut builder = DefaultMQPushConsumer::builder(self.runtime.clone())
            .client_config(config)
            .consumer_group(lines::text(command, "group"))
            .consume_from_where(ConsumeFromWhere::ConsumeFromFirstOffset)
            .client_rebalance(!lines::is_set(command, "pop"));
        if command.contains_key("maxReconsumeTimes") {
            builder = builder.max_reconsume_times(lines::number(command, "maxReconsumeTimes") as i32);
        }
        let mut member = builder.build();
        let expression = lines::text(command, "expression");
        if lines::text(command, "kind") == "SQL92" {
            member.subscribe_with_selector(&topic, Some(MessageSelector::by_sql(expression))).await?;
        } else {
            member.subscribe(&topic, expression.as_str()).await?;
        }
        let listener = Listener { member: name.clone(), fails: lines::is_set(command, "fails") };
        if lines::is_set(command, "orderly") {
            member.register_message_listener_orderly(listener);
        } else {
            member.register_message_listener_concurrently(listener);
        }
        member.start().await?;
        self.members.insert(name, Member::Push(Box::new(member)));
        Ok(json!({"event": "joined"}))
    }

    pub async fn join_lite(&mut self, command: &Fields) -> Result<Value, Failure> {
        let name = lines::text(command, "member");
        let member = DefaultLitePullConsumer::builder(self.runtime.clone())
            .name_server_addr(lines::text(command, "nameServer"))
            .instance_name(name.clone())
            .consumer_group(lines::text(command, "group"))
            .consume_from_where(ConsumeFromWhere::ConsumeFromFirstOffset)
            .auto_commit(true)
            .build()?;
        member.subscribe_with_expression(&lines::text(command, "topic"), &lines::text(command, "expression")).await?;
        member.start().await?;
        let (member, ends) = (Arc::new(member), Arc::new(AtomicBool::new(false)));
        let (polled, polling_ends, told) = (member.clone(), ends.clone(), name.clone());
        tokio::spawn(async move {
            while !polling_ends.load(Ordering::Acquire) {
                for message in polled.poll_with_timeout(POLL_MS).await {
                    lines::print_received(&told, &message);
                }
            }
        });
        self.members.insert(name, Member::Lite(member, ends));
        Ok(json!({"event": "joined"}))
    }

    pub async fn leave(&mut self, command: &Fields) -> Result<Value, Failure> {
        if let Some(member) = self.members.remove(&lines::text(command, "member")) {
            stop(member).await;
        }
        Ok(json!({"event": "left"}))
    }

    pub async fn close(&mut self) {
        for (_, member) in self.members.drain() {
            stop(member).await;
        }
    }
}

async fn stop(member: Member) {
    match member {
        Member::Push(mut consumer) => consumer.shutdown().await,
        Member::Lite(consumer, ends) => {
            ends.store(true, Ordering::Release);
            consumer.commit_all().await.ok();
            consumer.shutdown().await;
        }
    }
}

/// A listener that fails at the first delivery of each message, or not at all.
struct Listener {
    member: String,
    fails: bool,
}

impl Listener {
    fn succeeds(&self, messages: &[&MessageExt]) -> bool {
        for message in messages {
            lines::print_received(&self.member, message);
        }
        !self.fails || messages.iter().all(|each| each.reconsume_times() > 0)
    }
}

impl MessageListenerConcurrently for Listener {
    fn consume_message(
        &self,
        messages: &[&MessageExt],
        _context: &ConsumeConcurrentlyContext,
    ) -> ClientResult<ConsumeConcurrentlyStatus> {
        Ok(if self.succeeds(messages) {
            ConsumeConcurrentlyStatus::ConsumeSuccess
        } else {
            ConsumeConcurrentlyStatus::ReconsumeLater
        })
    }
}

impl MessageListenerOrderly for Listener {
    fn consume_message(
        &self,
        messages: &[&MessageExt],
        _context: &mut ConsumeOrderlyContext,
    ) -> ClientResult<ConsumeOrderlyStatus> {
        Ok(if self.succeeds(messages) {
            ConsumeOrderlyStatus::Success
        } else {
            ConsumeOrderlyStatus::SuspendCurrentQueueAMoment
        })
    }
}
