-- Take back 0002_insert_job; rows that it wrote stay.

drop function gendurable.insert_job;
