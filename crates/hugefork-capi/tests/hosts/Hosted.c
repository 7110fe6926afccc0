/* The native functions of Hosted.java. */
#include <jni.h>

#include "hosted.h"

JNIEXPORT jobject JNICALL Java_Hosted_open(JNIEnv *java, jclass class, jlong len)
{
    (void)class;
    if (hosted_open((size_t)len) != 0) {
        fprintf(stderr, "%s\n", hf_last_error());
        return NULL;
    }
    return (*java)->NewDirectByteBuffer(java, hosted_address(), len);
}

JNIEXPORT jlong JNICALL Java_Hosted_snapshot(JNIEnv *java, jclass class)
{
    (void)java, (void)class;
    return (jlong)(intptr_t)hosted_snapshot();
}

JNIEXPORT jlong JNICALL Java_Hosted_read(JNIEnv *java, jclass class, jlong snapshot, jlong offset)
{
    (void)java, (void)class;
    return hosted_read((hf_snapshot *)(intptr_t)snapshot, (size_t)offset);
}

JNIEXPORT void JNICALL Java_Hosted_close(JNIEnv *java, jclass class, jlong snapshot)
{
    (void)java, (void)class;
    hf_snapshot_close((hf_snapshot *)(intptr_t)snapshot);
}

JNIEXPORT jboolean JNICALL Java_Hosted_end(JNIEnv *java, jclass class)
{
    (void)java, (void)class;
    return hosted_end() ? JNI_TRUE : JNI_FALSE;
}
