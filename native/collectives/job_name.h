/* The name of a job: the one that its user gives, else that of the scheduler or launcher. */
#ifndef FABRICTIME_JOB_NAME_H
#define FABRICTIME_JOB_NAME_H

enum { FT_JOB_NAME = 128 };

/* Write the job's name of at most 127 bytes; nothing if there is none. `get` returns the value of a variable, such
 * as getenv. All processes of a job get the same name: a variable that differs among them is no part of it. */
void ft_job_name(const char *(*get)(const char *variable), char name[FT_JOB_NAME]);

/* Copy a text. One that is too long is cut before a character of UTF-8 and gets a checksum, so that names with
 * one beginning stay different. */
void ft_copy_name(char name[FT_JOB_NAME], const char *text);

#endif
