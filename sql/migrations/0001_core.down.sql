-- Take back 0001_core: every instance, signal, limit and queue setting is lost.
-- The schema itself and its table of migrations stay, for the next run up.

drop table gendurable.queues;
drop table gendurable.nodes;
drop table gendurable.gen_durable_buckets;
drop table gendurable.gen_durable_bucket_configs;
drop table gendurable.signals;
drop table gendurable.gen_durable;
drop type gendurable.durable_status;
